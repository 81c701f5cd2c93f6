"""Runs each program in a Python of its own, because a process cannot change its torch allocator."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run(jit_dir: Path) -> Run:
    """run(code or program's name, *arguments, on=True, flags=(), **GLAKE variables without prefix).

    `on` sets GLAKE_ALLOCATOR=1 and GLAKE_DRIVER=sim. A variable given as None is left out.
    """
    assert entry_points(group="torch.backends", name="glake"), "install glake: pip install -e ."

    def run(
        code: str, *arguments: str, on: bool = True, flags: tuple[str, ...] = (), **options: object
    ) -> subprocess.CompletedProcess[str]:
        settings: dict[str, object] = {"JIT_DIR": jit_dir, "SIM_MEMORY": "1GiB"}
        settings |= {"ALLOCATOR": 1, "DRIVER": "sim"} if on else {}
        settings |= options
        given = {f"GLAKE_{name}": str(v) for name, v in settings.items() if v is not None}
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        program = [str(PROGRAMS / code)] if code.endswith(".py") else ["-c", code]
        return subprocess.run(
            [sys.executable, *flags, *program, *arguments],
            env={**clean, "OMP_NUM_THREADS": "1", **given},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture(scope="session")
def passes(run: Run) -> Callable[..., list[str]]:
    """Runs a program as run() does, and returns its lines. It must succeed and write nothing to
    stderr.

    Only the coverage line, which GLAKE_ALLOCATOR=1 prints at exit, is allowed there.
    """

    def passes(code: str, *arguments: str, **options: object) -> list[str]:
        done = run(code, *arguments, **options)
        said = [line for line in done.stderr.splitlines() if not line.startswith("glake: emul")]
        assert (done.returncode, said) == (0, []), done.stderr
        return done.stdout.splitlines()

    return passes


@pytest.fixture(scope="session")
def stock_losses(passes: Callable[..., list[str]]) -> list[str]:
    """The losses of programs/train.py without glake."""
    return passes("train.py", on=False)
