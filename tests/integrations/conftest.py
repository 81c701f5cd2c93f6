"""Programs of hooks, run by a Python of their own on the simulated driver."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program() -> Run:
    """program(name, *arguments, **variables): programs/NAME.py, which must succeed."""

    def run(name: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        path = os.pathsep.join([str(HERE / "packages"), str(ROOT)])
        done = subprocess.run(
            [sys.executable, str(HERE / "programs" / f"{name}.py"), *arguments],
            env=clean | {"GLAKE_DRIVER": "sim", "PYTHONPATH": path} | variables,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
