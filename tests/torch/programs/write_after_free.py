"""Writes into a freed tensor."""

import ctypes

import torch

import glake


def dangling():
    return torch.zeros(1000).data_ptr()


ctypes.memset(dangling() + 16, 1, 1)
try:
    glake.check()
except glake.Corrupted as error:
    assert "write after free" in str(error) and "freed at" in str(error), error
    assert "dangling" in str(error), error
else:
    raise AssertionError("not found")
