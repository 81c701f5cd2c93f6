"""A rank whose last backward pass fails. Work of that pass is still queued when the rank ends."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3] / "trainer" / "fsdp"))
import nets

from glake.trainer.fsdp import Sharding

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(7)
net = nets.Net(layers=4)
sharded = Sharding.Config(prefetch=0).build(net)
tokens = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
for _ in range(12):
    nets.loss_of(sharded(tokens), tokens).backward()
norm = net.blocks[1].norm
forward = norm.forward


def fails(x):
    x = forward(x)
    x.register_hook(lambda gradient: 1 // 0)
    return x


norm.forward = fails
try:
    nets.loss_of(sharded(tokens), tokens).backward()
except ZeroDivisionError:
    dist.destroy_process_group()
    print("failed, and ended", flush=True)
