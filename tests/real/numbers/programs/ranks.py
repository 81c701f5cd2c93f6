"""DDP or FSDP2 under torchrun: losses on simulated GPUs, or on the CPU by gloo.

Arguments: ddp or fsdp, cuda or cpu, and a folder for rank 0's losses.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def main(kind: str, device_type: str, folder: str) -> None:
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device_type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(50, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 50))
    model = model.to(device)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device_type, (dist.get_world_size(),))
        for block in model[1:3]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(10):
        draw = torch.Generator().manual_seed(100 * step + rank)
        words = torch.randint(0, 50, (4, 17), generator=draw).to(device)
        logits = model(words[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    if rank == 0:
        Path(folder, f"{kind}-{device_type}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()
    if device_type == "cpu":
        # A thread of gloo's may still drop a tensor, for which it takes the interpreter's lock.
        # While the interpreter ends, that aborts the process (1 run in 50 on a busy machine).
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
