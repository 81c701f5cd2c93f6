"""Runs a program in a Python of its own, without the GLAKE variables that pytest has."""

import os
import subprocess
import sys
from pathlib import Path


def run(
    program: Path, *arguments: str, said: str | None = None, timeout: float = 120, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Runs the program with `said` on its standard input."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GLAKE_")}
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        input=said,
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def output(program: Path, *arguments: str, said: str | None = None, **variables: str) -> str:
    """Runs a program, which must succeed, and returns what it prints."""
    done = run(program, *arguments, said=said, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
