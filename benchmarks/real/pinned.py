"""Pinned host memory that jobs ask for, and that PyTorch's host allocator and glake's pin for it.

It needs a Python with the CUDA build (`make real-environment`), runs over the simulated driver, and
takes a minute. PyTorch rounds each request up to a power of two. The second side of the comparison
has `PYTORCH_CUDA_ALLOC_CONF=pinned_max_round_threshold_mb`, which ends the rounding from a size on.
Writes results/pinned.json.
"""

import datetime
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import glake
from glake.dryrun import libraries

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "pinned.json"
SIDES = {
    "PyTorch": {"GLAKE_ALLOCATOR": "0"},
    "PyTorch, 8 MiB": {
        "GLAKE_ALLOCATOR": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "pinned_max_round_threshold_mb:8",
    },
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_HOST_ALLOCATOR": "1"},
}
JOBS = {
    "optimizer_of_llama": "fp32 weights and AdamW state of Llama 3 8B",
    "cache_of_llama_70b": "KV cache of Llama 3 70B, 100,000 tokens",
    "activations": "activations of varying length, 20 steps",
}


def run(job: str, side: str) -> dict[str, Any]:
    """Runs a job in its own process, and returns its bytes. RuntimeError with its last output if it
    fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GLAKE_")}
    simulated = {"GLAKE_SIM_PHANTOM": "1", "GLAKE_SIM_MEMORY": "8GiB"}
    done = subprocess.run(
        [sys.executable, str(HERE / "jobs" / "pinned.py"), job],
        env=libraries.environment(kept | simulated | SIDES[side]),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{job} by {side} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    rows = []
    print(f"| job | asked for | {' | x | '.join(SIDES)} | x |")
    print("|---" * (2 + 2 * len(SIDES)) + "|")
    for job, title in JOBS.items():
        found = {side: run(job, side) for side in SIDES}
        asked = found["glake"]["asked_bytes"]
        cells = [
            f"{each['pinned_bytes'] / 2**30:.1f} GiB, {each['driver_calls']} calls | "
            f"{each['pinned_bytes'] / asked:.2f}"
            for each in found.values()
        ]
        print(f"| {title} | {asked / 2**30:.1f} GiB | {' | '.join(cells)} |", flush=True)
        rows.append({"job": job, "title": title, "sides": found})
    told = {
        "date": datetime.date.today().isoformat(),
        "torch": metadata.version("torch"),
        "glake": glake.__version__,
        "driver": "simulated",
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
