"""Allocates 8 MiB; prints how many bytes the option made contiguous."""

from glake import _C

ptr = _C.malloc(8 << 20)
print(_C.stats()["glake.contiguous_bytes"])
