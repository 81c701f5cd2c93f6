"""Loads data once it is told to, and prints when it began and ended."""

import json
import sys

from glake import _C, simcuda
from glake import transfer as t

size, loads = 8 << 20, 12
engine = t.Engine(relays="own")
block, source = t.Raw(_C.malloc(size, 0), size, 0), t.pinned((size,))
print(json.dumps([_C.device_count()]), flush=True)
sys.stdin.readline()
began = simcuda.now_ns()
for _ in range(loads):
    t.copy(block, source, stream=t.UNORDERED, direct=True).wait()
print(json.dumps([began, simcuda.now_ns(), size * loads]), flush=True)
sys.stdin.readline()
