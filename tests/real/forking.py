"""Runs cases by tests/real/forked.py, once for each allocator."""

import ast
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from glake.dryrun import libraries

ALLOCATORS: dict[str, dict[str, str]] = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"},
}
# PyTorch's own allocators show that the cases demand the right things. They run only with
# TEST_FULL=1, because PyTorch's version is pinned.
JUDGED = ["glake"] + [
    pytest.param(name, marks=pytest.mark.full) for name in ALLOCATORS if name != "glake"
]
Outcome = dict[str, str]
Outcomes = Callable[[str], dict[str, Outcome]]


def cases_in(file: Path) -> list[str]:
    """The names that forked.py gives the cases of a file, read without importing it."""
    functions = [n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)]
    cases = [name.removeprefix("case_") for name in functions if name.startswith("case_")]
    return [f"{file.stem}.{name}" for name in cases] or [file.stem]


def run_cases(
    python: str, allocator: str, files: list[Path], seconds: float = 150, **changes: str
) -> dict[str, Outcome]:
    """The outcome of every case of `files`, by name. AssertionError if the runner itself fails."""
    clean = {name: text for name, text in os.environ.items() if name[:6] != "GLAKE_"}
    if "GLAKE_JIT_DIR" in os.environ:
        clean["GLAKE_JIT_DIR"] = os.environ["GLAKE_JIT_DIR"]
    given = {"GLAKE_SIM_MEMORY": "1GiB", "GLAKE_SIM_DEVICES": "2", "OMP_NUM_THREADS": "1"}
    runner = Path(__file__).with_name("forked.py")
    done = subprocess.run(
        [python, str(runner), str(seconds), *map(str, files)],
        env=libraries.environment(clean | given | ALLOCATORS[allocator] | changes),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["case"]: line for line in lines}
