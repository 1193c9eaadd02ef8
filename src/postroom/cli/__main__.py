"""`python -m postroom.cli`, for where the script is not on the path."""

from postroom.cli import main

main()
