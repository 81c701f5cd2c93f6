"""Pinned blocks outlive their free. Host memory is given back."""

import glake
from glake import _C

ptr = _C.malloc(3 << 20)
glake.pin(ptr)
_C.free(ptr)
_C.empty_cache()
assert _C.stats()["glake.pinned_bytes"] == 4 << 20
glake.unpin(ptr)
for wrong in (lambda: glake.unpin(ptr), lambda: glake.pin(ptr), lambda: glake.pin(0)):
    try:
        wrong()
    except glake.InvalidPointer:
        continue
    raise AssertionError("accepted")
host = _C.host_malloc(1000)
_C.host_record_stream(host, 0, 0)
_C.host_free(host)
_C.host_empty_cache()
assert _C.host_stats()["reserved_bytes.current"] == 0
_C.shutdown()
