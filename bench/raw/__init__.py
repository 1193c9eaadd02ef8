"""Baseline (b): what a good engineer writes by hand for one program. Short, honest, and reviewed like the library."""
