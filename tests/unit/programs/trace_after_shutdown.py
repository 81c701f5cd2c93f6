"""Allocates, shuts glake down, and goes on. The trace is that of GLAKE_TRACE."""

import glake
from glake import _C

for _ in range(2):
    with glake.empty(1000):
        pass
    _C.shutdown()
    _C.options()
