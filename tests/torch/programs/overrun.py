"""Writes past the end of a tensor (argument: what has to find it, glake.check() or the exit)."""

import ctypes
import sys

import torch

import glake


def make_victim():
    with glake.tag("victim"):
        return torch.zeros(250)


victim = make_victim()
ctypes.memset(victim.data_ptr() + 1000, 1, 4)
if sys.argv[1] == "check":
    try:
        glake.check()
    except glake.Corrupted as error:
        text = str(error)
    assert 'tag "victim"' in text and "past the end" in text and "4 bytes changed" in text, text
    assert "make_victim" in text, text
    del victim
    assert glake.findings() == []
else:
    del victim
