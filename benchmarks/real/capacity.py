"""The smallest GPU of each job under PyTorch's own allocators and glake, by its CUDA build.

capacity.py [JOB...]: files of benchmarks/real/jobs; run it by a Python with the CUDA build
(`make real-environment`). Nothing is set aside for CUDA itself, so figures are the allocators'.
"""

import sys
from pathlib import Path

import glake
from glake.trace.units import size

JOBS = Path(__file__).parent / "jobs"
ALLOCATORS = ("native", "expandable", "glake", "compact")


def main(names: list[str]) -> None:
    print(
        "| job | allocator | peak allocated | peak reserved, 80 GiB | smallest GPU | x allocated |"
    )
    print("|---|---|---|---|---|---|")
    for name in names or ["finetune_7b", "lora_13b"]:
        runs = glake.dry_run(
            JOBS / f"{name}.py",
            memory="80GiB",
            outside=0,
            allocators=ALLOCATORS,
            capacity_search=True,
            output=sys.stderr.fileno(),
            progress=lambda text: print(text, file=sys.stderr),
        )
        for run in runs:
            least = run.smallest_capacity_bytes or 0
            print(
                f"| `{name}` | {run.allocator} | {size(run.peak_allocated_bytes)} | "
                f"{size(run.peak_reserved_bytes)} | {size(least)} | "
                f"{least / run.peak_allocated_bytes:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
