"""DeepSpeed's NVMe tier and pinned memory by glake, without libaio, compiler or powers of two.

DS_ACCELERATOR=cpu GLAKE_ALLOCATOR=1 GLAKE_DRIVER=sim python examples/hook_deepspeed.py
"""

import tempfile

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder import AsyncIOBuilder

import glake

assert deepspeed.__version__  # its import arms the hook
there = torch.randn(5 << 20)  # 20 MiB
pinned = get_accelerator().pin_memory(there)
handle = AsyncIOBuilder().load().aio_handle(block_size=1 << 20, queue_depth=8)
with tempfile.NamedTemporaryFile() as file:
    handle.async_pwrite(pinned, file.name)
    handle.wait()
    back = torch.zeros_like(there)
    handle.sync_pread(back, file.name)
assert torch.equal(back, there)
for name, value in sorted(glake.stats().items()):
    if name.startswith("glake.integrations.deepspeed."):
        print(f"{name:50}{value:12}")
