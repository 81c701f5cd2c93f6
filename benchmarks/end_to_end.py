"""The largest batch, and tokens per step, of the fine-tuning job on GPUs of 24, 40 and 80 GiB.

end_to_end.py [--memory GIB ...] [--allocator NAME ...] [--steps N] needs a Python with PyTorch's
CUDA build. The job (benchmarks/trainer/finetune.py) runs under `glake dry-run` over simulated GPUs,
with PyTorch's own allocator code, native and with expandable segments, and with glake in its place.
For each memory and allocator the script searches the batch by running the job: exactly up to 20
sequences, beyond that to 5 %. A row has the largest batch that ran through all steps, and the
smallest that did not.

With --gpu it measures on this machine's GPU instead: tokens/s of the job under each allocator, at a
given batch.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import glake
from glake.units import size

JOB = Path(__file__).parent / "trainer" / "finetune.py"
sys.path.insert(0, str(JOB.parent))
ALLOCATORS = ("native", "expandable", "glake")
# Every whole number up to 20, then steps of about 5 %.
BATCHES = [*range(1, 20), *(round(20 * 1.05**n) for n in range(64))]
ENVIRONMENTS = {
    "native": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "glake": {"GLAKE_ALLOCATOR": "1"},
}


@dataclass
class Searched:
    """For one allocator and memory: the largest batch that fits, and the least that does not."""

    fits: glake.dryrun.DryRun | None = None
    largest: int = 0
    refused: int = 0


def fits(batch: int, memory: int, allocator: str, steps: int) -> glake.dryrun.DryRun:
    (made,) = glake.dry_run(
        JOB,
        str(batch),
        "--steps",
        str(steps),
        memory=f"{memory}GiB",
        allocators=[allocator],
        output=subprocess.DEVNULL,
    )
    said = "runs" if made.fits else f"runs out in step {made.oom.step if made.oom else '?'}"
    print(f"{memory} GiB, {allocator}, batch {batch}: {said}", file=sys.stderr, flush=True)
    return made


def search(memory: int, allocator: str, steps: int, guess: int) -> Searched:
    """Doubles the distance from the guess until the answer is between two batches, then halves."""
    found, low, high = Searched(), -1, len(BATCHES)
    at = min(range(len(BATCHES)), key=lambda place: abs(BATCHES[place] - guess))
    stride = 1
    while high - low > 1:
        made = fits(BATCHES[at], memory, allocator, steps)
        if made.fits:
            low, found.fits, found.largest = at, made, BATCHES[at]
        else:
            high, found.refused = at, BATCHES[at]
        if low == -1 or high == len(BATCHES):
            at = max(at - stride, 0) if low == -1 else min(at + stride, len(BATCHES) - 1)
            stride *= 2
            if low == len(BATCHES) - 1:
                break
        else:
            at = (low + high) // 2
    return found


def tokens_a_step(batch: int, steps: int) -> float:
    """Predicted tokens per step, the mean over the job's steps."""
    from finetune import DATA

    from glake.trainer.data import Data

    data = Data.Config.from_dict(DATA).build(sequences=batch, seed=0)
    return sum(data.batch(step, 0, 1)[0].count for step in range(steps)) / steps


def simulated(memories: list[int], allocators: list[str], steps: int, guess: int | None) -> None:
    print("| GPU | allocator | largest batch | first that does not fit | tokens a step | "
          "peak allocated | peak reserved |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for memory in memories:
        near = guess or max(1, 2 * memory - 43)  # weights and logits take 21 GiB
        for allocator in allocators:
            found = search(memory, allocator, steps, near)
            row = ["0", str(found.refused), "0", "-", "-"]
            if found.fits is not None:
                near = found.largest
                row = [
                    str(found.largest),
                    str(found.refused or "-"),
                    f"{tokens_a_step(found.largest, steps):,.0f}",
                    size(found.fits.peak_allocated_bytes),
                    size(found.fits.peak_reserved_bytes),
                ]
            print(f"| {memory} GiB | {allocator} | {' | '.join(row)} |", flush=True)


def measured(batch: int, steps: int) -> None:
    """Prints tokens/s of the last steps on this machine's GPU, by a process for each allocator."""
    print("| allocator | batch | tokens/s |\n|---|---|---|")
    for allocator in ALLOCATORS:
        job = subprocess.run(
            [sys.executable, str(JOB), str(batch), "--steps", str(steps)],
            env=os.environ | ENVIRONMENTS[allocator],
            capture_output=True,
            text=True,
        )
        rates = re.findall(r"([\d,]+) tokens/s", job.stdout + job.stderr)
        last = (job.stdout + job.stderr).strip().splitlines()[-1:]
        told = rates[-1] if job.returncode == 0 and rates else f"failed: {' '.join(last)[:200]}"
        print(f"| {allocator} | {batch} | {told} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", type=int, nargs="+", default=[24, 40, 80], metavar="GIB")
    parser.add_argument("--allocator", choices=ALLOCATORS, nargs="+", default=ALLOCATORS)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--guess", type=int, help="the batch to try first")
    parser.add_argument("--gpu", type=int, metavar="BATCH", help="measure tokens/s on a real GPU")
    options = parser.parse_args()
    if options.gpu:
        measured(options.gpu, options.steps)
    else:
        simulated(options.memory, options.allocator, options.steps, options.guess)


if __name__ == "__main__":
    main()
