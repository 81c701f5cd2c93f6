"""Wrong sizes and devices are refused, and change nothing."""

import glake
from glake import _C, errors

_C.free(_C.malloc(1))
glake.headroom("2MiB")
wrong = [
    ("x", errors.InvalidArgument),
    (-1, errors.InvalidArgument),
    ("1GiB", errors.InvalidArgument),
    (None, errors.WrongType),
    (1.5, errors.WrongType),
    (True, errors.WrongType),
    (1 << 63, errors.InvalidArgument),
]
for size, error in wrong:
    try:
        glake.headroom(size)
    except error as said:
        assert repr(size) in str(said) or "GiB" in str(said) or str(size) in str(said), said
    else:
        raise AssertionError(size)
for device in (2, -1, "cuda:2", "cpu", "gpu0", 1.0):
    try:
        glake.headroom(0, device=device)
    except errors.InvalidDevice:
        continue
    raise AssertionError(device)
assert _C.headroom(0) == _C.headroom(-1) == 2 << 20
glake.headroom("0")  # the same as 0
assert _C.headroom(0) == _C.headroom(-1) == 0
