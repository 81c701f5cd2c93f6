"""More than a device has is refused before the device is used."""

import glake
from glake import _C

try:
    glake.headroom("10TiB")
except glake.InvalidArgument as said:
    assert "cuda:0, which has 256.00 MiB: give less" in str(said), said
else:
    raise AssertionError
glake.headroom("2MiB").restore()
_C.free(_C.malloc(200 << 20))
