"""A rank of training by DDP, FSDP or FSDP2 whose memory rests between steps, by real numbers.

    resting.py ddp|fsdp1|fsdp|fsdp-offload

In glake's memory the weights and the optimizer's memory are paused after each step and resumed at
the same addresses. Until the next step the optimizer's state is in host memory. `fsdp1` is FSDP,
`fsdp` is FSDP2, and `fsdp-offload` FSDP2 with its own offload, of pinned memory. Without glake
nothing rests. Prints rank 0's losses.
"""

import contextlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from glake.dryrun import numbers

numbers.install()
rank, how = int(os.environ["RANK"]), sys.argv[1]
IN_GLAKE = os.environ.get("GLAKE_ALLOCATOR") == "1"
WIDTH, LAYERS = 128, 3


def region(name: str) -> Any:
    if not IN_GLAKE:
        return contextlib.nullcontext()
    import glake

    return glake.region(name)


def parallel(model: nn.Module) -> nn.Module:
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, wrap

        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=wrap.ModuleWrapPolicy({nn.Linear}),
            device_id=rank,
            use_orig_params=True,
        )
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    policy = CPUOffloadPolicy(pin_memory=True) if how == "fsdp-offload" else OffloadPolicy()
    for layer in model.children():
        fully_shard(layer, offload_policy=policy)
    fully_shard(model, offload_policy=policy)
    return model


def pause_and_resume(model: nn.Module, names: tuple[str, ...]) -> None:
    import glake

    def places() -> list[int]:
        return [getattr(each, "_local_tensor", each).data_ptr() for each in model.parameters()]

    torch.cuda.synchronize()
    before, held = places(), torch.cuda.memory_reserved()
    given = sum(glake.pause(name) for name in names)
    assert given > 0 and torch.cuda.memory_reserved() == held - given, (given, held)
    for name in names:
        glake.resume(name, verify=True)
    assert places() == before


torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
with region("weights"):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to("cuda")
    model = parallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
pool = None
losses = []
for step in range(5):
    draw = torch.Generator().manual_seed(100 * step + rank)
    batch = torch.randn(16, WIDTH, generator=draw).pin_memory().to("cuda", non_blocking=True)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    with region("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    losses.append(mean.item() / dist.get_world_size())
    if IN_GLAKE and how != "fsdp-offload":  # fsdp-offload keeps both in host memory
        from glake import transfer

        if pool is None:  # the first step makes the state
            pause_and_resume(model, ("weights", "optimizer"))
            pool = transfer.Offloader("64MiB")
            pool.offload_optimizer(optimizer)
        else:
            assert pool.used > 0  # until the next step needs it
            pause_and_resume(model, ("weights",))
torch.cuda.synchronize()
if IN_GLAKE:
    import glake

    freed, stats = -1, glake.stats("cuda")
    while freed != stats["allocation.all.freed"]:  # the process group's threads free tensors, too
        freed = stats["allocation.all.freed"]
        of_torch, stats = torch.cuda.memory_stats(), glake.stats("cuda")
    for name in ("allocated_bytes.all.peak", "reserved_bytes.all.current", "allocation.all.freed"):
        assert stats[name] == of_torch[name] > 0, name
    shard = 4 * LAYERS * WIDTH * (WIDTH + 1) // dist.get_world_size()
    least = shard if how == "fsdp-offload" else batch.nbytes
    assert stats["glake.host.allocated_bytes.peak"] >= least
    glake.check()
if rank == 0:
    print("losses", losses, flush=True)
dist.destroy_process_group()
print("trained", flush=True)
