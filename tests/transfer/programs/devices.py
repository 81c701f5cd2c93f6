"""Asks how many devices there are."""

from glake import _C

_C.device_count()
