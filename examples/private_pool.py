"""A private pool: torch.cuda.MemPool keeps its memory to itself until it ends.

It needs PyTorch's CUDA build; without a GPU:
python -m glake dry-run --allocator glake examples/private_pool.py
"""

import torch

MIB = 1 << 20


def of(pool: torch.cuda.MemPool) -> int:
    """Bytes that the pool holds."""
    segments = torch.cuda.memory_snapshot()
    return sum(one["total_size"] for one in segments if tuple(one["segment_pool_id"]) == pool.id)


pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
outside = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
print(f"the pool holds {of(pool) // MIB} MiB")
assert of(pool) == 64 * MIB

del inside
torch.cuda.synchronize()
again = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")  # not from the pool
assert torch.cuda.memory_reserved() >= 144 * MIB
