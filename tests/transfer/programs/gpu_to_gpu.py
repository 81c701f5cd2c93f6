"""Copies from one GPU to another (arguments: their numbers), and prints the paths taken."""

import ctypes
import sys

import numpy as np

import glake.transfer as t
from glake import _C

SIZE = 64 << 20

source, target = map(int, sys.argv[1:])
data = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
src, dst = _C.malloc(SIZE, source), _C.malloc(SIZE, target)
ctypes.memmove(src, data.ctypes.data, SIZE)  # simulated memory can be written directly
result = t.copy(t.Raw(dst, SIZE, target), t.Raw(src, SIZE, source)).result()
assert ctypes.string_at(dst, SIZE) == data.tobytes()
for path in result.paths:
    print(path["path"])
