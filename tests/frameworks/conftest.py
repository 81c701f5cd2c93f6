"""Runs jobs of other packages, with and without glake, in the environment that has them.

FRAMEWORKS_PYTHON names its Python (`make integration` makes one), VLLM_PYTHON that of vLLM's CPU
build (`make integration-vllm`). If one is unset, the tests that need it are skipped, and say so.
"""

import functools
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
FRAMEWORKS_PYTHON = os.environ.get("FRAMEWORKS_PYTHON", "")
Job = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def frameworks_python() -> str:
    if not FRAMEWORKS_PYTHON:
        pytest.skip("left out: FRAMEWORKS_PYTHON names no Python with DeepSpeed and the others")
    return FRAMEWORKS_PYTHON


@pytest.fixture(scope="session")
def packages(frameworks_python: str) -> str:
    """The folder of that Python's packages, for a Python with another torch."""
    command = [frameworks_python, str(PROGRAMS / "packages.py")]
    return subprocess.check_output(command, text=True).strip()


@pytest.fixture(scope="session")
def real_python() -> str:
    """The Python that has a CUDA build of PyTorch."""
    python = os.environ.get("REAL_PYTHON")
    if not python:
        pytest.skip("left out: REAL_PYTHON names no Python with a CUDA build of PyTorch")
    return python


@pytest.fixture
def job(frameworks_python: str) -> Job:
    """run_job with the Python that has DeepSpeed and the others."""
    return functools.partial(run_job, frameworks_python)


@pytest.fixture
def vllm_job() -> Job:
    """run_job with the Python that has vLLM."""
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        pytest.skip("left out: VLLM_PYTHON names no Python with vLLM's CPU build")
    return functools.partial(run_job, python)


def run_job(
    python: str,
    name: str,
    *arguments: Any,
    ranks: int | None = None,
    hooks: str | None = "all",
    timeout: int = 300,
) -> dict[str, Any]:
    """Runs programs/NAME.py. Returns the JSON of its last line, with its stderr. Raises
    AssertionError if it fails.

    With `ranks` it runs under torchrun. `hooks` is GLAKE_INTEGRATIONS; None runs without glake.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    env |= {
        "DS_ACCELERATOR": "cpu",
        "GLAKE_ALLOCATOR": "0" if hooks is None else "1",
        "GLAKE_DRIVER": "sim",
        "GLAKE_INTEGRATIONS": hooks or "none",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        # Not the user's folder. If a build was killed there, DeepSpeed would wait for it for ever.
        "TORCH_EXTENSIONS_DIR": str(ROOT / "build" / "frameworks-extensions"),
    }
    command = [python, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
    if ranks is not None:
        torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command[1:1] = [*torchrun, f"--master-port={free_port()}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(told[-1]) | {"stderr": done.stderr}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
