"""Prints whether the native module has opened a driver."""

from pathlib import Path

from glake import _C

print(_C.driver_path(), "libsimcuda" in Path("/proc/self/maps").read_text())
