"""FSDP2 over gloo. The first rank prints its exact losses, and what is in single allocations."""

import json
import os
import sys

import torch
from torch.distributed.fsdp import fully_shard


def main() -> None:
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1 + torch.distributed.get_rank())
    losses = []
    for _ in range(4):
        x = torch.randn(8, 512, generator=draw)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    told: dict[str, object] = {"losses": losses}
    if os.environ.get("GLAKE_ALLOCATOR") == "1":
        import glake

        assert "glake" in sys.modules
        told["contiguous"] = glake.stats()["glake.contiguous_bytes"]
    if torch.distributed.get_rank() == 0:
        print(json.dumps(told), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
