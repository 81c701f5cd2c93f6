"""The curves of ../curves.cpp for PyTorch's own caching allocator. It needs a Python with the CUDA
build, and runs over the stand-ins for CUDA. Prints rows as the program does.

    curves.py [--rounds N] [--most N] [--only TEXT]

Times are those of the allocator alone. The time of the same loop with sizes of 0, which PyTorch
answers without its allocator, is subtracted.
"""

import argparse
import ctypes
import gc
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from glake import simcuda

MIB = 1 << 20
GRANULE = 2 * MIB
NEVER = -1
OPERATIONS = 200  # timed at each n
NEW_TO_THE_PROCESS = 100_000  # live blocks, whose records need more than idle host memory
DRIVER = (
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
)

alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
delete = torch._C._cuda_cudaCachingAllocator_raw_delete


@dataclass
class Point:
    """What one operation costs."""

    ns: float
    calls: float
    host_bytes: float | None = None


def driver_calls() -> int:
    return sum(max(simcuda.calls(symbol), 0) for symbol in DRIVER)


def streams(count: int) -> list[int]:
    """New streams, beyond the 32 of PyTorch's own pool."""
    runtime = ctypes.CDLL("libcuda.so.1")
    made = []
    for _ in range(count):
        handle = ctypes.c_void_p()
        if runtime.cuStreamCreate(ctypes.byref(handle), 1) != 0:
            raise RuntimeError("the driver made no stream")
        made.append(handle.value or 0)
    return made


def timed(count: int, work: Callable[[], object], empty: Callable[[], object]) -> Point:
    """Times `count` operations of `work`, less those of `empty`, which has no allocator."""
    gc.disable()
    started = time.perf_counter_ns()
    empty()
    nothing = time.perf_counter_ns() - started
    before = driver_calls()
    started = time.perf_counter_ns()
    work()
    took = time.perf_counter_ns() - started
    gc.enable()
    return Point(max(took - nothing, 0) / count, (driver_calls() - before) / count)


def asked(sizes: Sequence[int], stream: int = 0) -> tuple[list[int], Point]:
    """The blocks, and what one costs."""
    held: list[int] = []
    none = [0] * len(sizes)
    point = timed(
        len(sizes),
        lambda: held.extend([alloc(size, stream) for size in sizes]),
        lambda: [alloc(size, stream) for size in none],
    )
    return held, point


def emptying(n: int) -> Point:
    one, two = streams(2)
    blocks = [alloc(3 * MIB // 2, two if i % 2 else one) for i in range(n)]
    for block in blocks:
        delete(block)
    granules = torch.cuda.memory_reserved() / GRANULE
    whole = timed(1, torch.cuda.empty_cache, lambda: None)
    return Point(whole.ns / granules, whole.calls / granules)


def too_small(n: int) -> Point:
    piece = MIB + 512
    pieces = [alloc(piece, 0) for _ in range(2 * n)]
    for block in pieces[::2]:
        delete(block)
    spare = [alloc(piece + 512, 0) for _ in range(OPERATIONS)]
    for block in spare:
        delete(block)
    held, point = asked([piece + 512] * OPERATIONS)
    for block in [*pieces[1::2], *held]:
        delete(block)
    return point


def extents(n: int) -> Point:
    blocks = []
    for i in range(n):
        blocks += [alloc(GRANULE * (1 + i % 2), 0), alloc(GRANULE, 0)]
    for block in blocks[::2]:
        delete(block)
    count = min(OPERATIONS // 4, n // 32)
    held, point = asked([(4 + i % 8) * GRANULE for i in range(count)])
    for block in [*blocks[1::2], *held]:
        delete(block)
    return point


def views(n: int) -> Point:
    dice = random.Random(1)
    live: list[int] = []
    steps = [(dice.randrange(64), MIB + dice.randrange(256 * MIB)) for _ in range(n + OPERATIONS)]

    def play(part: Sequence[tuple[int, int]], blocks: list[int]) -> None:
        for at, size in part:
            if len(blocks) >= 64:
                delete(blocks[at])
                blocks[at] = blocks[-1]
                blocks.pop()
            blocks.append(alloc(size, 0))

    play(steps[:n], live)
    timed_steps = steps[n:]
    nothing = [(at, 0) for at, _ in timed_steps]
    point = timed(
        OPERATIONS, lambda: play(timed_steps, live), lambda: play(nothing, [0] * len(live))
    )
    for block in live:
        delete(block)
    return point


def on_streams(n: int) -> Point:
    own = streams(n)

    def play(first: int, count: int, scale: int) -> None:
        for i in range(first, first + count):
            stream = own[i % n]
            large = alloc(scale * (2 + i % 5) * MIB, stream)
            delete(alloc(scale * (64 << 10), stream))
            delete(large)

    play(0, 4 * n, 1)
    return timed(
        2 * OPERATIONS,
        lambda: play(0, 2 * OPERATIONS, 1),
        lambda: play(0, 2 * OPERATIONS, 0),
    )


def host_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def live_blocks(n: int) -> Point:
    dice = random.Random(1)
    sizes = [512 * (1 + dice.randrange(64)) for _ in range(n)]
    live = [1 << 40] * n  # integers of one size: Python's own share is known
    live = [each + i for i, each in enumerate(live)]
    before = host_bytes()
    for i, size in enumerate(sizes):
        live[i] = alloc(size, 0)
    taken = host_bytes() - before
    count = 100 * OPERATIONS
    steps = [(dice.randrange(n), 512 * (1 + dice.randrange(64))) for _ in range(count)]
    nothing = [(at, 0) for at, _ in steps]

    def play(part: Sequence[tuple[int, int]], blocks: list[int]) -> None:
        for at, size in part:
            delete(blocks[at])
            blocks[at] = alloc(size, 0)

    point = timed(count, lambda: play(steps, live), lambda: play(nothing, [0] * n))
    point.host_bytes = taken / n if n >= NEW_TO_THE_PROCESS else None
    for block in live:
        delete(block)
    return point


# Name, measure, when work completes, n: as in ../curves.cpp.
CURVES: tuple[tuple[str, Callable[[int], Point], int, tuple[int, ...]], ...] = (
    ("empty_cache, a granule, after frees", emptying, NEVER, (1000, 5000, 20000)),
    ("allocation among pieces too small", too_small, 0, (1000, 5000, 20000)),
    ("stitching among free extents", extents, 0, (1000, 10000, 100000)),
    ("random sizes after blocks", views, 0, (500, 2000, 8000)),
    ("two blocks on streams that never end", on_streams, NEVER, (4, 16, 64)),
    ("small block among live blocks", live_blocks, 0, (1000, 30000, 1000000)),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=1500000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.empty(1, device="cuda")  # makes the context
    for name, measure, completes, counts in CURVES:
        for n in counts:
            if options.only not in name or n > options.most:
                continue
            found: dict[str, list[float | None]] = {"ns": [], "calls": [], "host_bytes": []}
            for _ in range(options.rounds):
                simcuda.configure("complete_after", str(completes))
                point = measure(n)
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                for key, values in found.items():
                    value = getattr(point, key)
                    values.append(value if value is None or math.isfinite(value) else None)
            found["host_bytes"] = found["host_bytes"][:1]  # in later rounds this memory is not new
            row = {"pattern": "curves", "case": f"{name}: {n}", "subject": "pytorch"}
            print(json.dumps({**row, "rounds": found}), flush=True)
            print(row["case"], file=sys.stderr)


if __name__ == "__main__":
    main()
