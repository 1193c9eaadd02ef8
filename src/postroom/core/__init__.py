"""The pure core: values in, decisions out. No I/O, no clock, no lock, no await."""
