"""One rank of two that send CUDA tensors by torch.distributed.rpc. Copies compute here.

Prints "right".
"""

import os

import torch
from torch.distributed import rpc

MIB = 1 << 20


def same(tensor: torch.Tensor) -> torch.Tensor:
    """Runs in the other process, and sends its argument back."""
    assert tensor.device.index == int(os.environ["RANK"])
    return tensor


def marked(size: int, mark: int) -> torch.Tensor:
    return torch.full((size,), mark, dtype=torch.uint8).cuda()


rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.cuda.init()
options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=60)
options.set_device_map(f"rank{1 - rank}", {rank: 1 - rank})
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 0:
    calls = []
    for mark in range(20):
        # Each tensor is freed as soon as the call has begun, and its memory is written again.
        calls.append(rpc.rpc_async("rank1", same, args=(marked(1 + mark * MIB // 4, mark),)))
        marked(1 + mark * MIB // 4, 255)
    for mark, call in enumerate(calls):
        answer = call.wait()
        assert answer.device.index == 0 and bool((answer.cpu() == mark).all())
rpc.shutdown()
torch.cuda.synchronize()
print("right", flush=True)
