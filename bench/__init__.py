"""Speed, told as ratios to hand-written code that does the same work in the same run: `make bench`."""
