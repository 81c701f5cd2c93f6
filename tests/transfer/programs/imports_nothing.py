"""Importing glake.transfer loads nothing else."""

import sys

import glake.transfer as t

dir(t)
t.Raw(1, 2)
assert not {"torch", "numpy", "glake._C", "scipy"} & set(sys.modules), sys.modules
