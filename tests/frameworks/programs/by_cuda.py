"""Runs a program of this folder with PyTorch's CUDA build, and computes its numbers.

    by_cuda.py PACKAGES PROGRAM FOLDER

PACKAGES is where transformers, Lightning and NumPy are; torch is this Python's own.
"""

import runpy
import sys
from pathlib import Path

import torch  # noqa: F401 before numbers

from glake.dryrun import numbers

packages, program, folder = sys.argv[1:]
sys.path.append(packages)
numbers.install()
sys.argv[:] = [program, folder]
runpy.run_path(str(Path(__file__).with_name(program)), run_name="__main__")
