"""A forked child writes nothing into the trace (arguments: its file; used: glake is, before)."""

import contextlib
import os
import sys

import glake
from glake import _C

_C.configure("trace", sys.argv[1])
if sys.argv[2] == "used":
    _C.free(_C.malloc(1000))
child = os.fork()
if child == 0:
    with contextlib.suppress(glake.Forked):
        _C.free(_C.malloc(2000))
    sys.exit(0)  # the C library's buffers are written out
assert os.waitpid(child, 0)[1] == 0
_C.free(_C.malloc(3000))
_C.shutdown()
