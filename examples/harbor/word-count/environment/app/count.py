"""Prints how many words are in a file."""

import sys

with open(sys.argv[1]) as file:
    print(len(file.read().strip().split(" ")))
