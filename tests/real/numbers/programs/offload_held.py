"""Parameters under DistributedDataParallel or FSDP stay on their GPU. Others leave and return."""

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

import glake
from glake import transfer

offloader = transfer.Offloader("64MiB")
walks, referrers = [0], gc.get_referrers


def counted(*objects: Any) -> list[Any]:
    walks[0] += 1
    return referrers(*objects)


gc.get_referrers = counted


def stays(module: nn.Module, name: str) -> None:
    try:
        offloader.offload(module)
    except glake.InvalidArgument as error:
        assert name in str(error) and "Nothing was moved" in str(error), error
    else:
        raise AssertionError("it was moved")
    assert all(p.device.type == "cuda" for p in module.parameters()) and offloader.used == 0


def moves(module: nn.Module) -> None:
    offloader.offload(module).wait()
    assert all(p.device.type == "cpu" for p in module.parameters())
    offloader.prefetch(module).wait()
    module(torch.ones(1, 64, device="cuda")).sum().backward()
    assert all(p.grad is not None and p.grad.device.type == "cuda" for p in module.parameters())


net = nn.Linear(64, 64).cuda()
moves(net)
net.bias.register_post_accumulate_grad_hook(lambda _: None)  # the tensor keeps its hook
moves(net)
loss = net(torch.ones(1, 64, device="cuda")).sum()
loss.backward()
moves(net)  # an old loss is no reason to stay

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
moves(net)
assert walks == [0]
loss = net(torch.ones(1, 64, device="cuda")).sum()
moves(net)  # the loss holds both gradients, so all objects are searched once
assert walks == [1]


class Wrapper(nn.parallel.DistributedDataParallel):
    """Jobs have subclasses like this one."""


wrapped = Wrapper(net)
stays(wrapped, "DistributedDataParallel")
stays(net, "DistributedDataParallel")
wrapped(torch.ones(1, 64, device="cuda")).sum().backward()
stays(wrapped, "DistributedDataParallel")
moves(nn.Linear(64, 64).cuda())

for views in (False, True):
    sharded = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda(), use_orig_params=views
    )
    for _ in range(2):
        stays(sharded, "FullyShardedDataParallel")
        sharded(torch.ones(1, 64, device="cuda")).sum().backward()
dist.destroy_process_group()
print("held")
