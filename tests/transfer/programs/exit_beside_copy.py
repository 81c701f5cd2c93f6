"""Exits while a copy runs (arguments: its bytes, and `held` if its handle is kept)."""

import sys

import numpy as np

import glake.transfer as t
from glake import _C

size = int(sys.argv[1])
a = t.Raw(_C.malloc(size), size)
if sys.argv[2] == "held":
    handle = t.copy(a, np.zeros(size, np.uint8))
else:
    t.copy(a, np.zeros(size, np.uint8))
