"""torch.cuda.MemPool: glake's own pools, and pools with another allocator."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from checks import DEVICE, MIB, Skip, main, settle


def held_by(pool: torch.cuda.MemPool, tensor: torch.Tensor) -> bool:
    at = tensor.data_ptr()
    return any(
        each["address"] <= at < each["address"] + each["total_size"] for each in pool.snapshot()
    )


def check_a_pool_keeps_its_memory() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((3 * MIB,), 3, dtype=torch.uint8, device=DEVICE)
        small = torch.full((100,), 4, dtype=torch.uint8, device=DEVICE)
    outside = torch.full((3 * MIB,), 5, dtype=torch.uint8, device=DEVICE)
    assert held_by(pool, inside) and held_by(pool, small) and not held_by(pool, outside)
    address = inside.data_ptr()
    del inside
    settle()
    other = torch.empty(3 * MIB, dtype=torch.uint8, device=DEVICE)
    assert other.data_ptr() != address and not held_by(pool, other)
    with torch.cuda.use_mem_pool(pool):
        again = torch.empty(3 * MIB, dtype=torch.uint8, device=DEVICE)
    assert held_by(pool, again)
    assert bool((small == 4).all()) and bool((outside == 5).all())


def check_a_pool_ends() -> None:
    settle()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    assert pool.use_count() >= 1
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.memory_reserved() >= before + 64 * MIB
    del tensor, pool
    settle()
    assert torch.cuda.memory_reserved() <= before + 4 * MIB


def check_pools_nest() -> None:
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        first = torch.empty(2 * MIB, device=DEVICE)
        with torch.cuda.use_mem_pool(inner):
            second = torch.empty(2 * MIB, device=DEVICE)
        third = torch.empty(2 * MIB, device=DEVICE)
    assert held_by(outer, first) and held_by(inner, second) and held_by(outer, third)
    assert not held_by(outer, second)


def check_a_foreign_allocator_serves_its_pool() -> None:
    if not hasattr(torch.cuda.memory, "CUDAPluggableAllocator"):
        raise Skip("this torch has no pluggable allocator")
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(__file__).with_name("foreign.cpp"), Path(scratch, "foreign.so")
        compiler = os.environ.get("CXX", "g++").split()
        command = [*compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(made), "-ldl"]
        subprocess.run(command, check=True)
        counts = ctypes.CDLL(str(made))
        foreign = torch.cuda.memory.CUDAPluggableAllocator(
            str(made), "foreign_alloc", "foreign_free"
        )
        pool = torch.cuda.MemPool(foreign.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((5 * MIB,), 9, dtype=torch.uint8, device=DEVICE)
        calls = counts.foreign_allocated()
        assert calls >= 1
        mine = torch.full((5 * MIB,), 1, dtype=torch.uint8, device=DEVICE)
        assert counts.foreign_allocated() == calls and not held_by(pool, mine)
        assert int(tensor.long().sum()) == 9 * tensor.numel()
        assert int(mine.long().sum()) == mine.numel()
        del tensor
        settle()
        del pool
        settle()
        assert counts.foreign_freed() == counts.foreign_allocated()


if __name__ == "__main__":
    main(globals())
