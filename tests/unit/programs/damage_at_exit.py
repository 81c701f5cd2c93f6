"""Writes past the ends of a freed and of a live buffer, and reads no findings."""

import ctypes

import glake

freed, live = glake.empty(1000), glake.empty(2000)
ctypes.memset(freed.ptr + 1000, 1, 4)
ctypes.memset(live.ptr + 2000, 1, 4)
freed.free()
