"""Evaluates each line of its input, and prints the value or glake's error (test_cooperation.py)."""

import sys

import glake
from glake import _C  # noqa: F401  (lines use it)

kept: dict[str, object] = {}  # what lines keep
print("ready", flush=True)
for line in sys.stdin:
    try:
        told = eval(line)
    except glake.GlakeError as error:
        told = f"{type(error).__name__}: {error}"
    print(repr(told), flush=True)
