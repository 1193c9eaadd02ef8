"""Tools for tests of your own."""
