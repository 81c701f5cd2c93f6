"""Finds the smallest GPU of each job under PyTorch's own allocators and under glake.

capacity.py [JOB...] runs jobs of benchmarks/real/jobs and needs a Python with PyTorch's CUDA build
(`make real-environment`). Results go to results/JOB.json as they come. Results of the same versions
are kept, so that an interrupted run can go on. Nothing is set aside for CUDA itself, as figures are
the allocators' alone. It takes an hour on two cores. `table.py` makes the table and the picture.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import glake

HERE = Path(__file__).resolve().parent
ALLOCATORS = ("native", "expandable", "glake", "compact")
MEMORY = "80GiB"
HEADROOM = 1.05  # of the peak of allocated bytes, for the tight run
GRANULE = 2 << 20
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A script of jobs/, its name in the table, and its ranks."""

    script: str
    title: str
    ranks: int = 1
    precision: float = 0.002

    def run(self, allocator: str, memory: str | int, search: bool, tell: Tell) -> dict[str, Any]:
        script = str(HERE / "jobs" / f"{self.script}.py")
        torchrun = ("torchrun", "--nproc-per-node", str(self.ranks), script)
        (made,) = glake.dry_run(
            *(torchrun if self.ranks > 1 else (script,)),
            gpus=f"{self.ranks}xH100",
            memory=memory,
            outside=0,
            allocators=[allocator],
            capacity_search=search,
            precision=self.precision,
            output=sys.stderr.fileno(),
            progress=tell,
        )
        return made.to_json()


JOBS = {
    job.script: job
    for job in (
        Job("finetune_7b", "7B full fine-tune"),
        Job("lora_13b", "13B LoRA, varying lengths"),
        Job("fsdp2_8ranks", "3.5B FSDP2 on 8 ranks, varying lengths", ranks=8, precision=0.01),
        Job("moe_hash_routed", "mixture of 8 experts, unequal loads"),
        Job("rollout_and_train", "rollout and training by turns"),
    )
}


def versions() -> dict[str, str]:
    return {
        "glake": glake.__version__,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
    }


def commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True
    )
    return said.stdout.strip()


def measure(job: Job, path: Path, again: bool) -> None:
    """Fills the file of a job. Each allocator has a run in MEMORY, a search, and one with
    HEADROOM."""
    fresh = {
        "job": job.script,
        "title": job.title,
        "memory": MEMORY,
        "headroom": HEADROOM,
        "precision": job.precision,
        "versions": versions(),
        "runs": {},
        "tight": {},
    }
    found = json.loads(path.read_text()) if path.exists() and not again else fresh
    if found["versions"] != fresh["versions"]:
        found = fresh

    def keep(kind: str, allocator: str, made: dict[str, Any]) -> None:
        found[kind][allocator] = made
        found["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        found["machine"] = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        found["commit"] = commit()
        path.write_text(json.dumps(found, indent=1) + "\n")

    def tell(text: str) -> None:
        print(f"{job.script}: {text}", file=sys.stderr, flush=True)

    for allocator in ALLOCATORS:
        if allocator not in found["runs"]:
            keep("runs", allocator, job.run(allocator, MEMORY, True, tell))
    live = max(each["peak_allocated_bytes"] for each in found["runs"].values())
    tight = int(live * HEADROOM) // GRANULE * GRANULE
    for allocator in ALLOCATORS:
        if allocator not in found["tight"]:
            keep("tight", allocator, job.run(allocator, tight, False, tell))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--out", type=Path, default=HERE / "results", help="default: results/")
    parser.add_argument("--again", action="store_true", help="keep nothing of an earlier run")
    given = parser.parse_args()
    for name in given.jobs:
        if name not in JOBS:
            parser.error(f"no job {name!r}; there are {', '.join(JOBS)}")
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.jobs or JOBS:
        measure(JOBS[name], given.out / f"{name}.json", given.again)


if __name__ == "__main__":
    main()
