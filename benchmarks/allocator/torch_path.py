"""What a block costs on the host as PyTorch takes it: allocator, DataPtr, StorageImpl.

    REAL_PYTHON=.venv-real/bin/python python benchmarks/allocator/torch_path.py
        [--seconds S] [--rounds N] [--json] [--out DIR]

It runs PyTorch's CUDA build over the stand-ins for CUDA (`make real-environment`): PyTorch's own
allocator, its expandable segments, and glake in its place. Each has a process in each round, and
they take turns. The working set is that of hot_path, and nothing is mapped while the clock runs.
How to read it: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click
from common import ROOT, BenchmarkError, Metric, Pattern, Row, Runner, front, read_rows

from glake.allocator.adapter_build import cuda_headers
from glake.dryrun import libraries

BY_TORCH = Path(__file__).resolve().parent / "by_torch" / "torch_path.py"
SIDES = {
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"},
    "pytorch": {},
    "pytorch, expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}
PATTERN = Pattern(
    program="torch_path",
    title="A block as PyTorch takes it: one thread, hits, nanoseconds a call",
    metrics=(
        Metric("alloc_p50_ns", "alloc p50", "less"),
        Metric("free_p50_ns", "free p50", "less"),
        Metric("pair_mean_ns", "pair, mean*", "less"),
        Metric("two_threads", "two threads: one", "", 2),
    ),
    note="Our limits: small blocks 0.12 of PyTorch's own time in the same run (8.3 x), large ones "
    "0.2 (5 x); two threads 1.8 times the pairs of one. What torch asks the runtime is the current "
    "device and stream of one allocation, by the stand-in for CUDA's runtime. *: of the fastest "
    "99 %.",
    seconds=0.5,
    subjects={
        "glake": "glake's adapter in PyTorch's CUDA build, over the stand-ins for CUDA",
        "pytorch": "PyTorch's own default allocator there",
        "pytorch, expandable": "the same with expandable_segments:True",
        "no allocator": "StorageImpl and DataPtr alone, always of the same byte",
        "glake's C interface": "glake_malloc and glake_free, without torch",
        "mimalloc": "malloc of sizes 512 times smaller, where libmimalloc is installed",
        "glibc": "the same by the system's",
    },
)


def by_torch(python: str, side: str, seconds: float) -> list[Row]:
    """Runs one round of one side. BenchmarkError if it fails."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    device = {"GLAKE_SIM_PHANTOM": "1", "GLAKE_SIM_DEVICES": "1", "GLAKE_SIM_MEMORY": "80GiB"}
    env.setdefault("CUDA_HOME", str(cuda_headers()[0].parent))  # as that Python may have no headers
    ran = subprocess.run(
        [python, str(BY_TORCH), side, str(seconds)],
        env=libraries.environment({**env, **device, **SIDES[side], "PYTHONPATH": str(ROOT)}),
        stdout=subprocess.PIPE,
        text=True,
    )
    if ran.returncode != 0:
        raise BenchmarkError(f"{python} {BY_TORCH} {side} ended with status {ran.returncode}")
    return read_rows(ran.stdout)


def measure(run: Runner, seconds: float) -> list[Row]:
    """The rows of every side, over all rounds."""
    python = os.environ.get("REAL_PYTHON")
    if not python:
        raise click.ClickException(
            "REAL_PYTHON names no Python with a CUDA build of PyTorch: "
            "make real-environment, then REAL_PYTHON=.venv-real/bin/python"
        )
    found: dict[tuple[str, str], Row] = {}
    order = list(SIDES)
    for index in range(run.rounds):
        for side in order[index % len(order) :] + order[: index % len(order)]:
            for row in by_torch(python, side, seconds / run.rounds):
                into = found.setdefault((row["case"], row["subject"]), {**row, "rounds": {}})
                for metric, values in row["rounds"].items():
                    into["rounds"].setdefault(metric, []).extend(values)
    return list(found.values())


main = front(PATTERN, prepare=measure)

if __name__ == "__main__":
    main()
