"""How the cost of an operation grows with the number of blocks, views or streams, beside PyTorch's.

    python benchmarks/allocator/curves.py [--only TEXT] [--most N] [--rounds N] [--json] [--out DIR]

None of our curves should rise faster than log n. PyTorch's own allocator (`pytorch`) is measured
where REAL_PYTHON names a Python with its CUDA build (`make real-environment`); our model of it
always is. How to read it: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click
from common import ROOT, SUBJECTS, BenchmarkError, Metric, Pattern, Row, Runner, front, read_rows

from glake.dryrun import libraries

BY_TORCH = Path(__file__).resolve().parent / "by_torch" / "curves.py"
PATTERN = Pattern(
    program="curves",
    title="What an operation costs as n grows",
    metrics=(
        Metric("ns", "host ns", "less"),
        Metric("calls", "driver calls", "", 2),
        Metric("host_bytes", "host bytes a block", "less"),
    ),
    note="The number after the colon is n. Host time of glake and pytorch contains the simulated "
    "driver's own; the model has no driver. Driver calls are all of an operation's, events and "
    "queries too. Stitching and random sizes are by the policy compact. Host bytes are of records; "
    "glake's table of pointers takes 8 bytes more for each 512 of small blocks' memory. Those of "
    "pytorch are what the process grew by.",
    subjects={
        **SUBJECTS,
        "pytorch": "PyTorch's own default allocator in its CUDA build, over the stand-ins for CUDA "
        "(docs/real.md), in a process of its own; what calling it from Python takes is taken off",
    },
)


def by_torch(python: str, arguments: Sequence[str]) -> list[Row]:
    """Rows of PyTorch's own allocator. BenchmarkError if its run fails."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    device = {"GLAKE_SIM_PHANTOM": "1", "GLAKE_SIM_DEVICES": "1", "GLAKE_SIM_MEMORY": "1TiB"}
    ran = subprocess.run(
        [python, str(BY_TORCH), *arguments],
        env=libraries.environment({**env, **device, "PYTHONPATH": str(ROOT)}),
        stdout=subprocess.PIPE,
        text=True,
    )
    if ran.returncode != 0:
        raise BenchmarkError(f"{python} {BY_TORCH} ended with status {ran.returncode}")
    return read_rows(ran.stdout)


def measure(run: Runner, most: int | None, only: str | None) -> list[Row]:
    """Our program's rows and PyTorch's, over the same number of rounds."""
    arguments = [*(["--most", str(most)] if most else []), *(["--only", only] if only else [])]
    rows = run(arguments)
    python = os.environ.get("REAL_PYTHON")
    if not python:
        click.echo("PyTorch's own allocator is left out: REAL_PYTHON names no Python with a CUDA "
                   "build of PyTorch (make real-environment)", err=True)  # fmt: skip
        return rows
    return rows + by_torch(python, ["--rounds", str(run.rounds), *arguments])


OPTIONS = (
    click.Option(["--most"], type=click.IntRange(4), help="Leave out every n above."),
    click.Option(["--only"], help="The curves whose name contains this."),
)
main = front(PATTERN, *OPTIONS, prepare=measure)

if __name__ == "__main__":
    main()
