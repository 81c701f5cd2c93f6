"""FSDP2's buffers are single allocations in a job whose steps are in a region that then rests."""

import torch
from torch.distributed.fsdp import fully_shard

import glake

glake.enable(driver="sim", integrations="fsdp2")
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(2)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
inputs = torch.ones(4, 512)
with glake.region("step"):
    kept = torch.full((1 << 20,), 3.0)
    loss = model(inputs).square().mean()
    loss.backward()
assert glake.stats()["glake.integrations.fsdp2.contiguous_requests"] > 0
assert glake.pause("step") >= kept.nbytes
again = model(inputs).square().mean()  # buffers stay while the region rests
glake.resume("step")
assert bool((kept == 3).all()) and again.item() == loss.item()
torch.distributed.destroy_process_group()
print("stepped")
