"""The C++ test programs as pytest items: one for each case, and one run for each program.

A program's cases are read from its source, so that collecting them builds nothing. The first item
of a program runs all of it, and keeps what it printed for the others.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600
CASE = re.compile(r"^TEST\((\w+)\)", re.MULTILINE)
ROW = re.compile(r"(?:^\s*|argv,\s*\{)\s*\{\s*\"([^\"]+)\",", re.MULTILINE)
END = re.compile(r"^(.+?): (ok|FAILED|skipped)(.*)$")
WHOLE = "whole program"  # the item of a program without cases
# `make proofs` runs these: every call refused in turn, random programs, rates on every platform.
PROOFS = {
    "core_fuzz",
    "fault_sweep",
    "ipc_faults_test",
    "pools_random_test",
    "regions_random_test",
    "transfer_faults_test",
    "transfer_mix_test",
    "transfer_rates_test",
}


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native", ROOT / "tools" / "native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = load_tool()


class Ended(NamedTuple):
    """How a case ended (ok, FAILED, skipped), and what the program printed for it."""

    how: str
    text: str


def cases(program: str) -> list[str]:
    """The names of the program's cases, read from its source."""
    source = next(
        path
        for pattern in native.SOURCES["tests"]
        for path in ROOT.glob(pattern)
        if path.stem == program
    ).read_text()
    names = CASE.findall(source)
    table = re.search(r"run_checks\(\s*argc, argv,\s*\{|kChecks = \{", source)
    if table is not None:
        names += ROW.findall(source, table.start())
    return names or [WHOLE]


def items(programs: list[str]) -> list[Any]:
    """Parameters (program, case): each case of these programs."""
    return [
        pytest.param(program, case, marks=[pytest.mark.proof] if program in PROOFS else [])
        for program in programs
        for case in cases(program)
    ]


@functools.cache
def binaries() -> Path:
    """Builds all programs, and returns their folder. Raises CalledProcessError if a build fails."""
    directory: Path = native.build(ROOT / "build" / "tests")
    return directory


def called(program: str, *arguments: str, **settings: str) -> tuple[int | None, str]:
    """Runs the program. Returns its exit status (None: out of time) and what it printed."""
    try:
        done = subprocess.run(
            [str(binaries() / program), *arguments],
            env=native.environment() | {"GLAKE_DRIVER": "sim", **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


@functools.cache
def results(program: str, settings: tuple[tuple[str, str], ...] = ()) -> dict[str, Ended]:
    """The result of each case in a run of the program. The program's own is under WHOLE."""
    status, text = called(program, **dict(settings))
    ended: dict[str, Ended] = {}
    printed: list[str] = []
    for line in text.splitlines():
        printed.append(line)
        if end := END.match(line):
            ended[end[1]] = Ended(end[2], "\n".join(printed))
            printed = []
    how = "ok" if status == 0 else "FAILED"
    why = f"no end in {TIMEOUT_S} s" if status is None else f"exit status {status}"
    ended[WHOLE] = Ended(how, f"{why}; the end of what it printed:\n{text[-8000:]}")
    return ended


def check(program: str, case: str, **settings: str) -> None:
    """Fails if the case failed, or if the program ended before the case."""
    ended = results(program, tuple(sorted(settings.items())))
    if case in ended and ended[case].how == "skipped":
        pytest.skip(ended[case].text)
    assert case in ended, f"{program} did not run {case}: {ended[WHOLE].text}"
    assert ended[case].how != "FAILED", ended[case].text
    others = any(end.how == "FAILED" for name, end in ended.items() if name != WHOLE)
    assert others or ended[WHOLE].how == "ok", f"{program}: {ended[WHOLE].text}"
