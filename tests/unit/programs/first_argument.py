"""Prints its argument."""

import sys

print(sys.argv[1])
