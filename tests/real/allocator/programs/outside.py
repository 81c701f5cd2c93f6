"""Memory from outside the allocator: by a pool's own allocator, and with caching off."""

import sys

import torch

MIB = 1 << 20
LIBRARY = sys.argv[1]


def u8(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def refused(size):
    try:
        return u8(size) is None
    except torch.OutOfMemoryError:
        return True


def foreign_pool():
    made = torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "foreign_malloc", "foreign_free")
    pool = torch.cuda.MemPool(made.allocator())
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(256 * MIB / total)
    with torch.cuda.use_mem_pool(pool):
        kept = u8(160 * MIB)
        assert refused(160 * MIB), "a pool's own allocator passed the limit"
    assert refused(160 * MIB), "its memory does not count against the limit"
    assert not refused(60 * MIB)
    del kept, pool
    torch.cuda.empty_cache()
    assert not refused(160 * MIB)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


def uncached():
    before = torch.cuda.memory_stats()
    torch.cuda.caching_allocator_enable(False)
    block = u8(30 * MIB)
    torch.cuda.caching_allocator_enable(True)
    block.fill_(1)
    block.record_stream(torch.cuda.Stream())
    after = torch.cuda.memory_stats()
    same = ("allocated_bytes.all.current", "reserved_bytes.all.current", "segment.all.current",
            "allocation.all.allocated")  # fmt: skip
    assert all(before[key] == after[key] for key in same), [(before[k], after[k]) for k in same]
    free = torch.cuda.mem_get_info()[0]
    del block
    assert torch.cuda.mem_get_info()[0] >= free + 30 * MIB


u8(1)
foreign_pool()
uncached()
print("ok")
