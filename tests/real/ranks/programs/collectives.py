"""One rank: every collective of torch.distributed moves the right bytes, in stream order.

Values are made on the host, because kernels are not run. Prints "right" at the end.
"""

import os
import sys

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
eager = "eager" in sys.argv
dist.init_process_group("nccl", device_id=torch.device("cuda", rank) if eager else None)
total = size * (size + 1) / 2


def on_gpu(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).pin_memory().to("cuda", non_blocking=True)


def check(name: str, got: torch.Tensor, wanted: list[float]) -> None:
    values = got.cpu().tolist()
    assert values == wanted, f"rank {rank}: {name} gives {values}, not {wanted}"


for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
    x = on_gpu([rank + 1] * 5, dtype)
    dist.all_reduce(x)
    check(f"all_reduce of {dtype}", x, [total] * 5)
x = on_gpu([rank + 1])
dist.all_reduce(x, op=dist.ReduceOp.MAX)
check("max", x, [size])
out = torch.empty(2 * size, device="cuda")
dist.all_gather_into_tensor(out, on_gpu([rank, rank]))
check("all_gather", out, [i // 2 for i in range(2 * size)])
out = torch.empty(2, device="cuda")
dist.reduce_scatter_tensor(out, on_gpu([float(i) for i in range(2 * size)]))
check("reduce_scatter", out, [size * 2 * rank, size * (2 * rank + 1)])
x = on_gpu([rank])
dist.broadcast(x, 1)
check("broadcast", x, [1])
x = on_gpu([rank + 1])
dist.reduce(x, 0)
if rank == 0:
    check("reduce", x, [total])
out = torch.empty(size, device="cuda")
dist.all_to_all_single(out, on_gpu([rank * 10 + i for i in range(size)]))
check("all_to_all", out, [i * 10 + rank for i in range(size)])
out = torch.empty(3, device="cuda")
dist.scatter(out, [on_gpu([i * 2] * 3) for i in range(size)] if rank == 0 else None, 0)
check("scatter", out, [rank * 2] * 3)
out = torch.empty(4, device="cuda")
ring = [
    dist.P2POp(dist.isend, on_gpu([rank] * 4), (rank + 1) % size),
    dist.P2POp(dist.irecv, out, (rank - 1) % size),
]
for work in dist.batch_isend_irecv(ring):
    work.wait()
check("batched messages", out, [(rank - 1) % size] * 4)
if rank == 0:
    dist.send(on_gpu([7]), 1)
if rank == 1:
    out = torch.empty(1, device="cuda")
    dist.recv(out, 0)
    check("recv", out, [7])
dist.barrier()

pair = dist.new_group([0, 1])
if rank < 2:
    x = on_gpu([rank + 1])
    dist.all_reduce(x, group=pair)
    check("group", x, [3])
if eager:
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    half = dist.split_group(split_ranks=halves)
    x = on_gpu([1])
    dist.all_reduce(x, group=half)
    check("split_group", x, [size // 2])

side = torch.cuda.Stream()  # the reduction sees what a late copy writes
with torch.cuda.stream(side):
    late = torch.empty(1 << 18, device="cuda")
    late.copy_(torch.full((1 << 18,), rank + 1.0).pin_memory(), non_blocking=True)
    dist.all_reduce(late)
torch.cuda.current_stream().wait_stream(side)
check("late copy", late[:2], [total] * 2)

x = on_gpu([1])  # rank 1 waits outside of the driver while rank 0 waits for their collective
dist.all_reduce(x)
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    torch.cuda.synchronize()
    store.set("go", "1")
else:
    store.get("go")
check("crossed waits", x, [size])
dist.destroy_process_group()
print("right", flush=True)
