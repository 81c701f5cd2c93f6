"""Pinned host memory: arrays from glake's pool, which takes a freed block again.

GLAKE_DRIVER=sim python examples/pinned_memory.py
"""

import gc

import glake.transfer as t
from glake import _C

array = t.pinned((1024, 1024), "float32")
array[:] = 1.0
address = array.ctypes.data
print(f"{array.nbytes >> 20} MiB pinned at {address:#x}")

del array
gc.collect()
again = t.pinned((1024, 1024), "float32")
assert again.ctypes.data == address  # no driver call
for name, value in sorted(_C.host_stats().items()):
    print(f"{name:40}{value}")
