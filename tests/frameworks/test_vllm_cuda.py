"""vLLM's CUDA package over the simulated GPU, without glake and with it. With glake it also sleeps.

Its kernels compute nothing there, so its tokens mean nothing. Its memory is checked.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from glake.dryrun import libraries

PROGRAM = Path(__file__).resolve().parent / "programs" / "vllm_cuda.py"
EXTENSIONS = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "cumem_allocator")
STARTS = ("import", "platform", *EXTENSIONS, "engine", "generate")
SLEEPS = ("sleep", "wake_up", "generate again")


@pytest.mark.parametrize("way", ["stock", "cumem", "glake", "connector"])
def test_the_cuda_package_starts_and_sleeps_by_glake(tmp_path: Path, way: str) -> None:
    python = os.environ.get("VLLM_CUDA_PYTHON")
    if not python:
        pytest.skip("left out: VLLM_CUDA_PYTHON names no Python with vLLM's CUDA package")
    asked = {
        "GLAKE_ALLOCATOR": "0" if way == "stock" else "1",
        "GLAKE_DRIVER": "cuda",
        "GLAKE_SIM_MEMORY": "8GiB",
        "GLAKE_STRICT": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    done = subprocess.run(
        [python, str(PROGRAM), way, str(tmp_path)],
        env=libraries.environment({**os.environ, **asked}),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(told, indent=1))
    steps = STARTS + (SLEEPS if way in ("cumem", "glake") else ())
    assert {name: told.get(name) for name in steps} == dict.fromkeys(steps, "ok"), done.stderr
    if way in ("cumem", "glake"):
        asleep, awake = told["free"]
        assert asleep - awake >= 8 << 20 and told["slept"] >= asleep - awake
        assert f"Using sleep-mode backend: {way}" in done.stdout + done.stderr
    # 64 blocks of 16 tokens, two layers, keys and values of 256 in bfloat16.
    cache = 64 * 16 * 2 * 2 * 256 * 2
    assert (told["contiguous"] >= cache) == (way == "connector")
