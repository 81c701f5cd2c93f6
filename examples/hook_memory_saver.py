"""torch_memory_saver's calls on glake's regions give memory to the driver, without LD_PRELOAD.

It needs PyTorch's CUDA build; with a GPU, GLAKE_ALLOCATOR=1 python examples/hook_memory_saver.py;
without one:
python -m glake dry-run --numbers --allocator glake examples/hook_memory_saver.py
"""

import torch
from torch_memory_saver import torch_memory_saver

import glake

with torch_memory_saver.region("weights", enable_cpu_backup=True):
    weights = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
place = weights.data_ptr()
torch_memory_saver.pause("weights")
print("paused", glake.stats()["glake.paused_bytes"] >> 20, "MiB")
torch_memory_saver.resume("weights")
assert weights.data_ptr() == place and bool((weights.cpu() == 7).all())
print("resumed: the same bytes at the same address")
