"""A pin ends with its block."""

import glake
from glake import _C

block = _C.malloc(4 << 20)
with glake.pin(block):
    _C.free(block)
    assert glake.stats()["glake.pinned_bytes"] == 4 << 20
print(glake.stats()["glake.pinned_bytes"])
glake.pin(_C.malloc(1 << 20))
