"""Allocates one block."""

from glake import _C

_C.malloc(512)
