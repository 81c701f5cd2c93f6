"""A forked child is told that it may not watch."""

import os

import glake
from glake import _C

glake.record_memory_history()
block = _C.malloc(1000)
child = os.fork()
if child == 0:
    for call in (
        glake.snapshot,
        glake.findings,
        glake.check,
        lambda: _C.free(block),
        glake.record_memory_history,
    ):
        try:
            call()
        except glake.Forked:
            continue
        os._exit(1)
    with glake.tag("child"):
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
_C.free(block)
