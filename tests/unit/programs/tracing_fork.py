"""A forked child writes nothing into the trace.

Arguments: the trace's file, and `used` if the parent uses glake before it forks.
"""

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
    sys.exit(0)  # an exit that writes out the C library's buffers
assert os.waitpid(child, 0)[1] == 0
_C.free(_C.malloc(3000))
_C.shutdown()
