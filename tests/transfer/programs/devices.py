"""Asks for devices."""

from glake import _C

_C.device_count()
