"""transformers, PEFT, Accelerate and Lightning by PyTorch's CUDA build on the simulated GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from glake.dryrun import libraries

PROGRAMS = Path(__file__).resolve().parent / "programs"


@pytest.mark.parametrize("program", ["accelerate_loop", "hf_trainer", "lightning_fit"])
def test_fine_tuning_in_memory_that_rests(
    packages: str, real_python: str, tmp_path: Path, program: str
) -> None:
    told = {}
    for allocator in ("0", "1"):
        asked = {
            "CUDA_VISIBLE_DEVICES": "0",
            "GLAKE_ALLOCATOR": allocator,
            "GLAKE_DRIVER": "cuda",
            "GLAKE_SIM_MEMORY": "2GiB",
            "GLAKE_STRICT": "1",
            "HF_HUB_OFFLINE": "1",
        }
        done = subprocess.run(
            [real_python, str(PROGRAMS / "by_cuda.py"), packages, f"{program}.py"]
            + [str(tmp_path / allocator)],
            env=libraries.environment({**os.environ, **asked}),
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told[allocator] = json.loads(done.stdout.splitlines()[-1])
    stock, ours = told["0"], told["1"]
    # Its weights were paused, and offloaded, after each epoch.
    assert ours["losses"] == stock["losses"] and len(set(ours["losses"])) > 4
    assert stock["allocated"] > stock["weights"] > 0
    assert ours["allocated"] == pytest.approx(stock["allocated"], rel=0.01)
    assert ours["of_torch"] == ours["of_glake"]
    assert ours["pinned"] > 0 < ours["copied"]


def test_generation_by_a_cache_in_virtual_memory(
    packages: str, real_python: str, tmp_path: Path
) -> None:
    asked = {"CUDA_VISIBLE_DEVICES": "0", "GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1"}
    asked |= {"GLAKE_DRIVER": "cuda", "GLAKE_SIM_MEMORY": "2GiB", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [real_python, str(PROGRAMS / "by_cuda.py"), packages, "generation.py", str(tmp_path)],
        env=libraries.environment({**os.environ, **asked}),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"same": [True] * 4, "held_after_reset": 0}
