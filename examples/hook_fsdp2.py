"""FSDP2's buffers as single driver allocations, which NCCL can register. The hook must be named.

GLAKE_ALLOCATOR=1 GLAKE_DRIVER=sim GLAKE_INTEGRATIONS=fsdp2 python examples/hook_fsdp2.py
"""

import os
import sys

import torch
from torch.distributed.fsdp import fully_shard

import glake

if "fsdp2" not in os.environ.get("GLAKE_INTEGRATIONS", ""):
    sys.exit("the hook must be named: " + __doc__.splitlines()[2])

store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model(torch.randn(8, 512)).square().mean().backward()
told = glake.stats()
print("buffers in single allocations", told["glake.integrations.fsdp2.contiguous_requests"])
torch.distributed.destroy_process_group()
