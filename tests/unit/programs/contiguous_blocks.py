"""Kinds of blocks are chosen in nested contexts, and by each thread for itself."""

import threading

import glake
from glake import _C


def whole() -> int:
    return _C.stats()["glake.contiguous_bytes"]


with glake.contiguous():
    a = _C.malloc(3 << 20)
    assert whole() == 4 << 20
    with glake.contiguous("legacy"):
        b = _C.malloc(1)
    with glake.contiguous("stitched"):
        c = _C.malloc(3 << 20)
    assert whole() == 6 << 20
    other = threading.Thread(target=lambda: _C.free(_C.malloc(3 << 20)))
    other.start()
    other.join()
    assert whole() == 6 << 20
try:
    with glake.contiguous():
        raise KeyError
except KeyError:
    pass
d = _C.malloc(3 << 20)
assert whole() == 6 << 20
again = glake.contiguous()
with again:
    e = _C.malloc(3 << 20)
with again, glake.contiguous("stitched"), again:
    f = _C.malloc(3 << 20)
assert whole() == 14 << 20
for ptr in (a, b, c, d, e, f):
    _C.free(ptr)
_C.check()
_C.shutdown()
