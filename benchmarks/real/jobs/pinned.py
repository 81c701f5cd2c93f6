"""Takes pinned host memory as jobs do, and prints requested and pinned bytes as JSON.

pinned.py JOB: benchmarks/real/pinned.py runs it over the simulated driver, whose books have the
bytes that the process has pinned.
"""

import json
import random
import sys
from collections.abc import Iterator

import torch

from glake import simcuda
from glake.trainer.models import sizes


def optimizer_of_llama() -> Iterator[list[int]]:
    """fp32 weights and AdamW's two moments of Llama 3 8B, a tensor for each parameter."""
    with torch.device("meta"):
        counts = [own.numel() for own in sizes.model("llama-3-8b").build().parameters()]
    yield [4 * count for count in counts for _ in range(3)]


def cache_of_llama_70b() -> Iterator[list[int]]:
    """Keys and values of 100,000 tokens of Llama 3 70B (80 layers, 8 heads of 128, bf16), a buffer
    for each layer."""
    yield [100_000 * 2 * 8 * 128 * 2] * 80


def activations() -> Iterator[list[int]]:
    """The inputs of 32 blocks of width 4096, in bf16, for eight sequences, the longest of 400 to
    4000 tokens. They are freed after each of 20 steps."""
    draw = random.Random(1)
    for _ in range(20):
        yield [2 * 4096 * 8 * draw.randint(400, 4000)] * 32


JOBS = {job.__name__: job for job in (optimizer_of_llama, cache_of_llama_70b, activations)}


def main(job: str) -> None:
    torch.cuda.init()
    asked = pinned = 0
    for step in JOBS[job]():
        held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in step]
        asked = max(asked, sum(step))
        pinned = max(pinned, simcuda.ledger(0)["host_bytes"])
        del held
    calls = simcuda.calls("cuMemHostAlloc") + simcuda.calls("cuMemFreeHost")
    print(json.dumps({"asked_bytes": asked, "pinned_bytes": pinned, "driver_calls": calls}))


if __name__ == "__main__":
    main(sys.argv[1])
