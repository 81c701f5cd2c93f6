"""Megatron-core's GPT has the same losses with glake's hook, which carries its activations."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from glake.dryrun import libraries

PROGRAMS = Path(__file__).resolve().parent / "programs"


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_gpt_has_the_same_losses(job, tp: int, pp: int) -> None:
    stock = job("megatron_gpt", tp, pp, ranks=tp * pp, hooks=None)
    hooked = job("megatron_gpt", tp, pp, ranks=tp * pp)
    assert hooked["losses"] == stock["losses"]
    assert "RuntimeWarning" not in hooked["stderr"]
    assert hooked["back"]  # an activation went to pinned memory and came back through the engine
    assert hooked["copies"] == 2 * hooked["away"]
    assert hooked["offloaded"] == hooked["reloaded"] == hooked["away"] > 0
    assert hooked["pinned"] >= hooked["away"]  # glake pinned it while it was away
    first, second, third = hooked["contiguous"]
    assert 0 < first < second == third  # only one longer buffer is made


def test_what_is_not_allowed_stays(job) -> None:
    assert job("megatron_gpt", 1, 1, ranks=1, hooks="cupy")["contiguous"] == [0, 0, 0]


def test_armed_twice_is_armed_once(frameworks_python: str) -> None:
    program = PROGRAMS.parents[1] / "integrations" / "programs" / "armed_twice.py"
    done = subprocess.run(
        [frameworks_python, str(program), "megatron"],
        env=os.environ | {"GLAKE_DRIVER": "sim", "PYTHONPATH": str(PROGRAMS.parents[2])},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.stdout.splitlines()[-1:] == ["as it was"], done.stdout + done.stderr


def test_hybrid_optimizer_by_the_cuda_build(packages: str, real_python: str) -> None:
    told = {}
    for allocator in ("0", "1"):
        asked = {"GLAKE_ALLOCATOR": allocator, "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
        done = subprocess.run(
            [real_python, str(PROGRAMS / "megatron_hybrid.py"), packages],
            env=libraries.environment({**os.environ, **asked}),
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told[allocator] = json.loads(done.stdout.splitlines()[-1])
    assert told["1"]["allocated"] == told["0"]["allocated"] > 0
    half = 2 * 1024 * 1025 * 4  # bytes of the parameters that the CPU has
    assert told["1"]["pinned"] >= 2 * half  # parameters and gradients, in glake's host pool
