"""Switches numbers on, then runs a program (arguments: the program and its own arguments)."""

import runpy
import sys

import torch  # noqa: F401

from glake.dryrun import numbers

numbers.install()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
