"""`python -m andrea` is the command `andrea`."""

from andrea.cli import main

main()
