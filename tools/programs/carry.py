"""Compiles glake's torch adapters into a folder (argument), for the torch of this Python."""

import sys
from pathlib import Path

from glake.allocator import adapter_build as build

names = ["emulation", "plugin", build.FAKE_CUDA]
names += [build.CUDA, build.NUMBERS] if build.installed_torch().cuda else []
for name in names:
    print(build.carry(name, Path(sys.argv[1])))
