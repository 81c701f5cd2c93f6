"""The patterns of benchmarks/allocator, through any allocator that Python reaches.

Each is a list of (slot, bytes) operations, where 0 bytes mean a free. It is made from a seed before
the clock runs, and all allocators play the same list. Sizes are scaled so that the most bytes live
at once are the budget.
"""

from __future__ import annotations

import gzip
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRACES = Path(__file__).resolve().parents[2] / "tests" / "traces"
LEAST, MOST = 512, 64 * 2**20
LIVE, SIZES, REPLACED = 200, 32, 4000

Operation = tuple[int, int]


def _size(numbers: random.Random) -> int:
    return int(math.exp(numbers.uniform(math.log(LEAST), math.log(MOST))))


def steady(numbers: random.Random) -> list[Operation]:
    """A working set of few sizes, as a training step has. All requests are hits."""
    sizes = [_size(numbers) for _ in range(SIZES)]
    return _replaced(numbers, lambda: numbers.choice(sizes))


def mixed(numbers: random.Random) -> list[Operation]:
    """A working set in which each block has a new size, as in larson on one thread."""
    return _replaced(numbers, lambda: _size(numbers))


def _replaced(numbers: random.Random, size: Callable[[], int]) -> list[Operation]:
    made = [(slot, size()) for slot in range(LIVE)]
    for _ in range(REPLACED):
        slot = numbers.randrange(LIVE)
        made += [(slot, 0), (slot, size())]
    return made + [(slot, 0) for slot in range(LIVE)]


def bursts(numbers: random.Random) -> list[Operation]:
    """Bursts freed in random order, with a few blocks that outlive many (as mimalloc's mstress)."""
    made: list[Operation] = []
    kept: list[int] = []
    for burst in range(60):
        slots = [100 + burst * 64 + index for index in range(64)]
        made += [(slot, _size(numbers)) for slot in slots]
        numbers.shuffle(slots)
        kept += slots[:4]
        made += [(slot, 0) for slot in slots[4:]]
        while len(kept) > 48:
            made.append((kept.pop(numbers.randrange(len(kept))), 0))
    return made + [(slot, 0) for slot in kept]


def trace(numbers: random.Random) -> list[Operation]:
    """tests/traces/gpt-varying, without its streams."""
    made: list[Operation] = []
    live: set[int] = set()
    with gzip.open(TRACES / "gpt-varying.trace.gz", "rt") as file:
        lines = [line for line in file if line[0] in "af"]
    for line in lines:
        word, *fields = line.split()
        if word == "a":
            made.append((int(fields[0]), int(fields[1])))
            live.add(int(fields[0]))
        else:
            made.append((int(fields[0]), 0))
            live.discard(int(fields[0]))
    return made + [(slot, 0) for slot in sorted(live)]


PATTERNS = {each.__name__: each for each in (steady, mixed, bursts, trace)}


def operations(name: str, budget: int) -> list[Operation]:
    """The pattern's list, with at most `budget` bytes live at once."""
    made = PATTERNS[name](random.Random(name))
    factor = budget / _peak(made)
    return [(slot, max(1, int(size * factor)) if size else 0) for slot, size in made]


def _peak(made: list[Operation]) -> int:
    held: dict[int, int] = {}
    live = peak = 0
    for slot, size in made:
        live += size or -held.pop(slot)
        if size:
            held[slot] = size
        peak = max(peak, live)
    return peak


class Taker:
    """Where blocks come from: torch, rmm (a pool of RMM's under torch), or cupy (its own pool).

    `take` gives a block of so many bytes, which is freed when the last reference goes. `empty`
    gives cached memory back to the device, if the pool `shrinks`. ImportError if it is not
    installed.
    """

    def __init__(self, kind: str, device: str, limit: int) -> None:
        self.empty: Callable[[], None] = lambda: None
        self.shrinks = kind != "rmm"
        if kind == "cupy":
            import cupy

            pool = cupy.get_default_memory_pool()
            pool.set_limit(size=limit)
            self.take: Callable[[int], object] = pool.malloc
            self.empty = pool.free_all_blocks
            return
        import torch

        if kind == "rmm":
            import rmm
            from rmm.allocators.torch import rmm_torch_allocator

            rmm.reinitialize(pool_allocator=True, initial_pool_size=2**21, maximum_pool_size=limit)
            torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
        where = torch.device(device)
        self.take = lambda size: torch.empty(size, dtype=torch.uint8, device=where)


def play(made: list[Operation], take: Callable[[int], object]) -> dict[str, Any]:
    """Plays a list once. Returns nanoseconds of the calls, including Python's part. An error of
    out of memory, of any kind, ends it and is returned as `oom`."""
    blocks: dict[int, object] = {}
    taken, freed = [], []
    clock = time.perf_counter_ns
    oom = None
    for slot, size in made:
        if size:
            before = clock()
            try:
                block = take(size)
            except (RuntimeError, MemoryError) as error:  # of torch and RMM; of CuPy
                oom = str(error)[:200]
                break
            taken.append(clock() - before)
            blocks[slot] = block
            del block
        else:
            before = clock()
            del blocks[slot]
            freed.append(clock() - before)
    blocks.clear()
    return {**_times("alloc", taken), **_times("free", freed), "oom": oom}


def _times(name: str, samples: list[int]) -> dict[str, float | None]:
    if len(samples) < 2:
        return {f"{name}_{what}_ns": None for what in ("p50", "p99", "mean")}
    return {
        f"{name}_p50_ns": statistics.median(samples),
        f"{name}_p99_ns": statistics.quantiles(samples, n=100)[98],
        f"{name}_mean_ns": statistics.fmean(samples),
    }
