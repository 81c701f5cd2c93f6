"""Imports glake alone, and prints its modules that the arguments name."""

import sys

import glake

for name in sys.argv[1:]:
    assert name in dir(glake), name
    print(getattr(glake, name).__name__)
