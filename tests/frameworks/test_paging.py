"""A model larger than its GPU is paged in by accelerate's cpu_offload and glake's Offloader."""

import json
import os
import subprocess
from pathlib import Path

from glake.dryrun import libraries

PAGING = Path(__file__).resolve().parents[2] / "benchmarks" / "real" / "paging.py"
MODEL = 16 * 144  # MiB


def test_a_model_larger_than_its_gpu_is_paged_in(packages: str, real_python: str) -> None:
    asked = {
        "GLAKE_ALLOCATOR": "1",
        "GLAKE_DRIVER": "cuda",
        "GLAKE_SIM_DEVICES": "8",
        "GLAKE_SIM_MEMORY": "1GiB",
        "GLAKE_STRICT": "1",
    }
    told = {}
    for way in ("sequential", "frozen"):
        done = subprocess.run(
            [real_python, str(PAGING), way, packages],
            env=libraries.environment({**os.environ, **asked}),
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told[way] = json.loads(done.stdout.splitlines()[-1])
    assert max(each["MiB"] for each in told.values()) < 1024 < MODEL
    assert told["frozen"]["ms"] < 0.8 * told["sequential"]["ms"]  # copies run beside layers' work
