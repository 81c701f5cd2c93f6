"""The jobs of benchmarks/real on a real GPU: what each allocator holds, and which fit a tight
limit.

    python benchmarks/gpu/jobs.py [--seconds S] [--out FILE] [--job NAME]...

Each run is a process of its own. *ample* has no limit. *tight* sets PyTorch's per-process limit in
the middle between the smallest GPUs that dry runs found for glake and for expandable segments
(benchmarks/real/results). By the dry runs glake fits there, and the two others do not. Runs share
the GPU as long as its memory suffices, so times mean something only with --alone. `dry_run` has the
dry run's figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "real" / "results"
JOBS = ("rollout_and_train", "lora_13b", "moe_hash_routed", "finetune_7b")
ALLOCATORS: dict[str, dict[str, str]] = {
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "native": {},
}
CONTEXT = 2 << 30  # what each process holds: CUDA's context, loaded kernels
GRANULE = 2 << 20


@dataclass
class Run:
    """One process: a job under an allocator. `limit` is in bytes, 0 for none."""

    job: str
    allocator: str
    case: str
    needs: int  # bytes of the GPU, from the dry run
    limit: int = 0
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def start(self) -> None:
        dropped = ("GLAKE_", "PYTORCH_")
        kept = {key: value for key, value in os.environ.items()
                if not key.startswith(dropped) or key == "GLAKE_JIT_DIR"}  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "job_worker.py"), self.job, str(self.limit)],
            env=kept | ALLOCATORS[self.allocator],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def result(self) -> dict[str, Any]:
        """The result that the ended process printed."""
        assert self.process is not None and self.process.stdout is not None
        text = self.process.stdout.read()
        found = [json.loads(line[7:]) for line in text.splitlines() if line[:7] == "RESULT "]
        row = {"job": self.job, "allocator": self.allocator, "case": self.case, "limit": self.limit}
        if not found:
            return row | {"error": f"exit status {self.process.returncode}: {text[-1500:]}"}
        return row | found[-1]


def dry_run(job: str) -> dict[str, Any]:
    """The figures of the job's dry run, by allocator."""
    runs: dict[str, Any] = json.loads((RESULTS / f"{job}.json").read_text())["runs"]
    return runs


def ample(job: str, allocator: str) -> Run:
    return Run(job, allocator, "ample", int(dry_run(job)[allocator]["peak_reserved_bytes"] * 1.03))


def tight(job: str) -> Iterator[Run]:
    runs = dry_run(job)
    middle = sum(runs[name]["smallest_capacity_bytes"] for name in ("glake", "expandable")) // 2
    limit = middle // GRANULE * GRANULE
    for allocator in ALLOCATORS:
        yield Run(job, allocator, "tight", limit, limit)


class Lane:
    """Runs side by side as many runs as fit on the GPU, in the given order."""

    def __init__(self, memory: int, seconds: float, console: Console, alone: bool = False) -> None:
        self.memory, self.console, self.alone = memory, console, alone
        self.deadline = time.monotonic() + seconds
        self.running: list[Run] = []
        self.rows: list[dict[str, Any]] = []

    def work(self, waiting: list[Run]) -> None:
        """Makes all runs, until the deadline. Runs that follow from a result come first."""
        while (waiting or self.running) and time.monotonic() < self.deadline:
            free = self.memory - sum(each.needs + CONTEXT for each in self.running)
            for run in list(waiting):
                if run.needs + CONTEXT <= free and not (self.alone and self.running):
                    waiting.remove(run)
                    free -= run.needs + CONTEXT
                    run.start()
                    self.running.append(run)
            for run in [each for each in self.running if each.process.poll() is not None]:  # type: ignore[union-attr]
                self.running.remove(run)
                row = run.result()
                self.rows.append(row)
                self.say(row)
                if run.allocator == "glake" and run.case == "ample" and row.get("finished"):
                    waiting[:0] = tight(run.job)
            time.sleep(0.1)
        for run in self.running:
            assert run.process is not None
            run.process.kill()
            run.process.wait()
            self.rows.append({"job": run.job, "allocator": run.allocator, "case": run.case,
                              "limit": run.limit, "error": "no time was left"})  # fmt: skip

    def say(self, row: dict[str, Any]) -> None:
        if "error" in row:
            ended = row["error"].splitlines()[-1][:160]
        else:
            ended = "fits" if row["finished"] else f"out of memory after {row['steps']} steps"
            ended += f", {row['peak_reserved_bytes'] / 2**30:.2f} GiB reserved"
        self.console.print(
            f"{row['job']}, {row['allocator']}, {row['case']}: {ended}", soft_wrap=True
        )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=170.0, show_default=True, help="Time for all of it.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON; else stdout.")
@click.option("--job", "jobs", type=click.Choice(JOBS), multiple=True, help="These alone.")
@click.option("--alone", is_flag=True, help="One run at a time: then steps can be timed.")
def main(seconds: float, out: Path | None, jobs: tuple[str, ...], alone: bool) -> None:
    """What each allocator holds for the README's jobs on this GPU."""
    import torch

    free = torch.cuda.mem_get_info()[0]
    chosen = jobs or JOBS
    lane = Lane(free, seconds, Console(stderr=True), alone)
    order = [ample(job, "glake") for job in chosen]
    order += [ample(job, name) for job in chosen for name in ("native", "expandable")]
    lane.work(order)
    for row in lane.rows:
        said = dry_run(row["job"])[row["allocator"]]
        row["dry_run"] = {key: said[key] for key in
                          ("peak_allocated_bytes", "peak_reserved_bytes", "smallest_capacity_bytes",
                           "driver_calls")}  # fmt: skip
    text = json.dumps({"rows": lane.rows}, indent=1) + "\n"
    out.write_text(text) if out is not None else click.echo(text)
    if any("error" in row for row in lane.rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
