"""torchtitan with PyTorch's CUDA build on the simulated GPU needs only the environment variable."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import free_port

from glake.dryrun import libraries

PROGRAM = Path(__file__).resolve().parent / "programs" / "titan_fit.py"


def test_torchtitan_has_the_same_losses(tmp_path: Path) -> None:
    python = os.environ.get("TITAN_PYTHON")
    if not python:
        pytest.skip("left out: TITAN_PYTHON names no Python with torchtitan and a CUDA build")
    told = {}
    for allocator in ("0", "1"):
        asked = {
            "GLAKE_ALLOCATOR": allocator,
            "GLAKE_DRIVER": "cuda",
            "GLAKE_SIM_MEMORY": "4GiB",
            "GLAKE_STRICT": "1",
            "HF_HUB_OFFLINE": "1",
            "TORCHDYNAMO_DISABLE": "1",  # compiled kernels are not computed here
        }
        done = subprocess.run(
            [python, str(PROGRAM), str(tmp_path / allocator), str(free_port())],
            env=libraries.environment({**os.environ, **asked}),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told[allocator] = json.loads(done.stdout.splitlines()[-1])
    assert told["1"]["losses"] == told["0"]["losses"]
    assert len(told["1"]["losses"]) == 4 and told["1"]["losses"][-1] < told["1"]["losses"][0]
    assert told["1"]["allocator"] == "adapter" and told["0"]["allocator"] == "None"
    # The job reports glake's figures. The peak is that of PyTorch's own allocator, up to rounding.
    assert told["1"]["counted"] == told["1"]["allocated"]
    assert told["1"]["allocated"] == pytest.approx(told["0"]["allocated"], rel=0.02)
    assert told["1"]["allocated"] > 100 << 20
