"""Writes past a block's end and after a free, and prints what is found."""

import ctypes

import glake
from glake import _C

block, freed = _C.malloc(1000), _C.malloc(500)
ctypes.memset(block + 1000, 1, 2)
try:
    glake.check()
except glake.Corrupted as error:
    print(error)
glake.check()
_C.free(freed)
ctypes.memset(freed, 7, 1)
try:
    glake.check()
except glake.Corrupted as error:
    print(error)
ctypes.memset(block - 1, 1, 1)
ctypes.memset(block + 1023, 1, 1)
_C.free(block)
found = glake.findings()
print(len(found), glake.findings())
