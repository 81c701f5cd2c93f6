"""Runs a program of examples/ by the command line that its own docstring gives."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def command(name: str) -> tuple[dict[str, str], list[str]]:
    """The variables and the words of the last line of the example's docstring."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    last = str(text).replace("\\\n", "").splitlines()[-1]  # a line may go on after a backslash
    words = shlex.split(last.rpartition(": ")[2])
    count = next(index for index, word in enumerate(words) if "=" not in word)
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def output(
    name: str, python: str = sys.executable, arguments: tuple[str, ...] = (), **variables: str
) -> str:
    """Runs the example as its docstring says, and returns what it prints. Raises AssertionError if
    it fails."""
    given, words = command(name)
    start = {"python": [python], "glake": [python, "-m", "glake.cli"]}[words[0]]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    done = subprocess.run(
        [*start, *words[1:], *arguments],
        env={**clean, "OMP_NUM_THREADS": "1", **given, **variables},
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{name}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
