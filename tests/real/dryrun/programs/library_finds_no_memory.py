"""Leaves cuBLAS no memory for its workspace. An earlier request is refused, and lived on from."""

import contextlib

import torch

with contextlib.suppress(torch.OutOfMemoryError):
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
held = torch.ones(48 << 18, device="cuda")
small = torch.ones(64, 64, device="cuda")
small @ small
