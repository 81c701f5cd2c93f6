"""The headroom of one device, and that of all, is set, restored and given back."""

import glake
from glake import _C

MIB = 1 << 20
_C.free(_C.malloc(200 * MIB))
with glake.headroom("100MiB") as outer:
    assert outer.bytes == 100 * MIB and outer.free_bytes >= 100 * MIB
    assert glake.stats()["glake.headroom_bytes"] == 100 * MIB
    with glake.headroom(8 * MIB, device="cuda:1"):
        assert _C.headroom(0) == 100 * MIB and _C.headroom(1) == 8 * MIB
    assert _C.headroom(1) == 100 * MIB
    held = _C.malloc(150 * MIB)
    try:
        _C.malloc(20 * MIB)
    except glake.OutOfMemory as error:
        assert "Lowering the headroom by" in str(error)
    else:
        raise AssertionError
    _C.free(held)
assert _C.headroom(0) == _C.headroom(1) == _C.headroom(-1) == 0
kept = glake.headroom(0)
kept.restore()
assert kept.free_bytes > 0
