"""Runs programs by a CUDA build of PyTorch over the stand-ins for CUDA's libraries.

REAL_PYTHON names a Python that has it (the wheel alone, `pip install --no-deps`, is enough). If it
is unset, the tests that need it are skipped, and say so.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glake.dryrun import libraries

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
REAL_PYTHON = os.environ.get("REAL_PYTHON", "")
Run = Callable[..., subprocess.CompletedProcess[str]]


def run_program(
    python: str, name: str, *arguments: str, **changes: str
) -> "subprocess.CompletedProcess[str]":
    """Runs programs/NAME.py by `python` over the stand-ins, with `changes` in the environment.
    AssertionError with its output if it fails."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_SIM_")}
    env = libraries.environment({**env, **changes})
    done = subprocess.run(
        [python, str(PROGRAMS / f"{name}.py"), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, f"{name}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def real_python() -> str:
    if not REAL_PYTHON:
        pytest.skip("left out: REAL_PYTHON names no Python with a CUDA build of PyTorch")
    return REAL_PYTHON


@pytest.fixture
def real(real_python: str) -> Run:
    """run_program by the Python that has the CUDA build."""
    return lambda name, *arguments, **changes: run_program(real_python, name, *arguments, **changes)


@pytest.fixture
def here() -> Run:
    """run_program by this Python, for programs that need no CUDA build."""
    return lambda name, *arguments, **changes: run_program(
        sys.executable, name, *arguments, **changes
    )
