"""Writes a trace and a snapshot of the same allocations (arguments: both files)."""

import random
import sys

import glake
from glake import _C

random.seed(3)
live = [_C.malloc(5000)]
_C.trace(sys.argv[1])
glake.record_memory_history(max_entries=100000)
for step in range(300):
    if len(live) > 1 and random.random() < 0.5:
        _C.free(live.pop(random.randrange(1, len(live))))
    else:
        with glake.tag(f"tag.{step % 5}"):
            live.append(_C.malloc(random.choice((100, 3000, 700000, 5 << 20))))
glake.dump_snapshot(sys.argv[2])
_C.trace(None)
