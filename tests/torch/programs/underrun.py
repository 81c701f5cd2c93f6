"""Writes before the start of a tensor."""

import ctypes

import torch

t = torch.zeros(10)
ctypes.memset(t.data_ptr() - 4, 1, 4)
del t
