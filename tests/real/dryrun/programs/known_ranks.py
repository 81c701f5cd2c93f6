"""Memory mode on several ranks: known values that they send through the GPUs arrive."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
length = torch.tensor([rank * 10 + 7], device="cuda")
dist.all_reduce(length, op=dist.ReduceOp.MAX)
assert length.item() == 17

# Values that one rank knows and the other does not stay so.
mine = torch.ones(2, device="cuda") if rank == 0 else torch.randn(2, device="cuda")
gathered = torch.empty(4, device="cuda")
dist.all_gather_into_tensor(gathered, mine)
assert gathered.tolist() == [1, 1, 0, 0]
assert (1 - gathered[2:]).tolist() == [0, 0]
dist.all_reduce(mine)
assert (mine + 1).tolist() == [0, 0]

objects = [None, None]
dist.all_gather_object(objects, {"rank": rank, "text": "y" * (rank * 300_000 + 5)})
assert [len(each["text"]) for each in objects] == [5, 300_005]
told = ["a" * 100_000, {"b": 1}] if rank == 0 else [None, None]
dist.broadcast_object_list(told, src=0)
assert told == ["a" * 100_000, {"b": 1}]
mine = [None]
dist.scatter_object_list(mine, [["first"], ["second", 2]] if rank == 0 else None, src=0)
assert mine == [["second", 2]] if rank else [["first"]]

model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(4, 512, device="cuda")).sum().backward()
optimizer.step()
dcp.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
dcp.load({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
print(f"rank {rank} told", flush=True)
dist.destroy_process_group()
