"""Prints the number of devices."""

from glake import _C

print(_C.device_count())
