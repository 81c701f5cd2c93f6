"""The bytes of contiguous blocks that an option makes of a large one."""

from glake import _C

ptr = _C.malloc(8 << 20)
print(_C.stats()["glake.contiguous_bytes"])
