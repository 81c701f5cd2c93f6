"""Tests for a real GPU: each program runs in a Python of its own, with glake as its allocator.

`make gpu` runs them (marker gpu). Everywhere else they are collected, their programs are read, and
the names they use are looked up (test_without_gpu.py). So the first run on a GPU can be trusted.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 150


def checks_of(program: Path) -> list[str]:
    """Names of the program's checks, read from its text."""
    body = ast.parse(program.read_text()).body
    return [each.name for each in body
            if isinstance(each, ast.FunctionDef) and each.name.startswith("check_")]  # fmt: skip


def variables_of(program: Path) -> dict[str, str]:
    """The program's ENVIRONMENT, a literal at its top."""
    for each in ast.parse(program.read_text()).body:
        if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "ENVIRONMENT":
            return dict(ast.literal_eval(each.value))
    return {}


PROGRAMS_WITH_CHECKS = sorted(path for path in PROGRAMS.glob("*.py") if checks_of(path))


def environment(glake: bool, **variables: str) -> dict[str, str]:
    """This process's environment, with no allocator settings except those given."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GLAKE_", "PYTORCH_")) or key == "GLAKE_JIT_DIR"
    }
    if glake:
        kept |= {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
    return kept | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | variables


def run_checks(program: Path) -> dict[str, dict[str, Any]]:
    """Runs all checks. After a check that ends the process, a new process runs the rest."""
    left, found = checks_of(program), {}
    while left:
        done = run_program(program, *left, variables=variables_of(program))
        rows = [json.loads(line[7:]) for line in done.stdout.splitlines() if line[:7] == "RESULT "]
        found |= {row["name"]: row for row in rows}
        left = left[len(rows) :]
        if left and not (rows and done.returncode == 0):
            text = f"the program ended with {done.returncode}\n{done.stderr[-3000:]}"
            found[left[0]] = {"name": left[0], "status": "failed", "text": text}
            left = left[1:]
    return found


def run_program(
    program: Path, *arguments: str, glake: bool = True, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the program once. One that hangs is ended, and counts as one that died."""
    try:
        return subprocess.run(
            [sys.executable, str(program), *arguments],
            env=environment(glake, **(variables or {})),
            cwd=PROGRAMS,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        said = [s.decode(errors="replace") if isinstance(s, bytes) else s or ""
                for s in (late.stdout, late.stderr)]  # fmt: skip
        return subprocess.CompletedProcess(late.cmd, -9, said[0], f"{said[1]}\n{SECONDS} s over")
