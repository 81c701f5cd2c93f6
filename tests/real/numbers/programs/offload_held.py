"""Parameters that DistributedDataParallel averages stay on their GPU; others leave and return."""

import torch
import torch.distributed as dist
from torch import nn

import glake
from glake import transfer

offloader = transfer.Offloader("64MiB")


def stays(module: nn.Module) -> None:
    try:
        offloader.offload(module)
    except glake.InvalidArgument as error:
        assert "DistributedDataParallel" in str(error) and "Nothing was moved" in str(error), error
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
net.bias.register_post_accumulate_grad_hook(lambda _: None)  # of the tensor, which keeps it
moves(net)
loss = net(torch.ones(1, 64, device="cuda")).sum()
loss.backward()
moves(net)  # an old loss is no reason to stay

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
wrapped = nn.parallel.DistributedDataParallel(net)
stays(wrapped)
wrapped(torch.ones(1, 64, device="cuda")).sum().backward()
stays(wrapped)
dist.destroy_process_group()
print("held")
