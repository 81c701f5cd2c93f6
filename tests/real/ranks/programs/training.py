"""One rank of a few steps of training by DDP or FSDP2. Kernels are counted, not run.

    training.py ddp|fsdp

Prints the peak of reserved bytes and "trained".
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

rank, how = int(os.environ["RANK"]), sys.argv[1]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
with torch.device("cuda"):
    model: nn.Module = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(4))
    )
if how == "ddp":
    model = nn.parallel.DistributedDataParallel(
        model, device_ids=[rank], init_sync=os.environ.get("GLAKE_SIM_PHANTOM") != "1"
    )
else:
    from torch.distributed.fsdp import fully_shard

    for block in model.children():
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    loss = model(torch.randn(16, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print("reserved", torch.cuda.max_memory_reserved(), flush=True)
dist.destroy_process_group()
print("trained", flush=True)
