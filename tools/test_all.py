"""Runs the long proofs one after the other, and keeps a log of each one's last run.

    python tools/test_all.py [--only NAME ...] [--list]

Without --only all steps run but those that fetch gigabytes more (`on_demand` below). A step that
fails does not stop the others. tests/test-all.log is written again after each step, so an
interrupted run loses no step that was done. It keeps the last run of steps that were not asked for.
The output of a step is in build/test-all/NAME.log. The exit code is 1 if a step did not pass.

`make test-all` runs this after it has built what the steps need.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import step

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "tests" / "test-all.log"
HEAD = "# The last run of each step of `make test-all`, written by tools/test_all.py.\n"
TIMED_OUT = 124  # exit status of timeout(1)
KILL_AFTER_S = 60  # seconds until a step is killed that does not end on SIGTERM
# Files that a run writes itself. They do not count when it is checked whether the commit's files
# have changed.
WRITTEN = ("tests/test-all.log", "tests/mutants/mutants.log")
PYTEST_END = re.compile(r"(?:=+ )?(\d+ (?:passed|failed|error|skipped).* in [\d.]+s.*?)(?: =+)?$")


class Step(NamedTuple):
    """One proof: a shell command in the root of the checkout, and how long it may take."""

    name: str
    command: str
    limit_h: float = 1.0
    on_demand: bool = False


PYTEST = "$PY -m pytest -n 2 --dist loadfile"
STEPS = (
    Step("headers", "$PY tools/header_matrix.py --fetch"),
    Step("suite", f"TEST_FULL=1 {PYTEST} tests -m 'not gpu'", 6),
    Step("real", "TEST_FULL=1 make real", 2),
    Step("integration", "make integration", 2),
    Step("sanitize", "make sanitize", 6),
    Step("driver-lock", "$PY tools/native.py --program driver_lock_test --run -- 10000"),
    Step("mutants", "make mutants", 3),
    Step("fuzz", "make fuzz SECONDS=600"),
    Step("soak", "make soak MINUTES=30", 2),
    Step("kills", "$PY benchmarks/trainer/kills.py --kills 100", 2),
    Step("kills-every-50", "$PY benchmarks/trainer/kills.py --kills 0 --every 50", 2),
    Step(
        "wheels",
        'make wheels && $PY tools/try_wheel.py "$(ls -t dist/glake-*.whl | head -n 1)" --torch',
        2,
    ),
    Step("titan", "make integration-titan", 2, on_demand=True),
    Step("vllm", "make integration-vllm", 2, on_demand=True),
    Step("vllm-cuda", "make integration-vllm-cuda", 2, on_demand=True),
    Step("cupy", "make integration-cupy", on_demand=True),
)


def read(log: Path) -> dict[str, str]:
    """The log's entries by the step's name, also those of steps that no longer exist."""
    entries: dict[str, str] = {}
    name = ""
    for line in log.read_text().splitlines() if log.exists() else []:
        if line.startswith("#") or not line:
            continue
        if not line.startswith(" "):
            name = line.partition(":")[0]
        entries[name] = entries.get(name, "") + line + "\n"
    return entries


def write(log: Path, entries: dict[str, str], steps: tuple[Step, ...]) -> None:
    """Writes the log whole, in the order of the steps; steps without a run are named at its end."""
    text = HEAD + "".join("\n" + entries[one.name] for one in steps if one.name in entries)
    if absent := [one.name for one in steps if one.name not in entries]:
        text += f"\n# Never run: {', '.join(absent)}.\n"
    beside = log.with_name(log.name + ".new")
    beside.write_text(text)
    beside.replace(log)


def last_words(path: Path) -> str:
    """The last line in which pytest counts its tests. If there is none, the last line with a
    letter."""
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    lines = [line.rpartition("\r")[2].strip() for line in lines]
    counts = [found[1] for line in lines if (found := PYTEST_END.match(line))]
    return (
        counts or [line for line in lines if re.search("[a-z]", line)] or ["(nothing printed)"]
    )[-1][:140]


def git(*words: str) -> str:
    """The output of a git command. It is empty if there is no repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n")


def commit() -> str:
    """A text that names the commit, and says whether files differ from it."""
    changed = [
        line for line in git("status", "--porcelain").splitlines() if line[3:] not in WRITTEN
    ]
    return (git("log", "-1", "--format=%h") or "unknown") + (", tree changed" if changed else "")


def python() -> str:
    """The path of this Python, for a shell in the root of the checkout."""
    path = Path(sys.executable)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def entry(one: Step, outcome: str, began: tuple[str, str], seconds: float, said: str) -> str:
    """The log's lines for one run of a step."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"{one.name}: {outcome}\n"
        f"  {began[0]}, {seconds:.0f} s on {cores} cores, commit {began[1]}\n"
        f"  $ {one.command}\n"
        f"  {said}\n"
    )


def run(one: Step, folder: Path) -> tuple[str, str, bool]:
    """Runs a step. Returns its outcome, its lines for the log, and whether it was interrupted."""
    output = folder / f"{one.name}.log"
    limit_s = round(one.limit_h * 3600)
    words = ["timeout", "-k", str(KILL_AFTER_S), str(limit_s), "sh", "-c", one.command]
    began = (f"{datetime.datetime.now():%Y-%m-%d %H:%M}", commit())
    start = time.monotonic()
    stopped = False
    try:
        status = step.run(output, one.name, words)
        outcome = {0: "passed", TIMED_OUT: f"cut off after {one.limit_h:g} h"}.get(
            status, f"FAILED (exit status {status})"
        )
    except KeyboardInterrupt:
        stopped = True
        outcome = "cut off by whoever ran it"
    seconds = time.monotonic() - start
    return outcome, entry(one, outcome, began, seconds, last_words(output)), stopped


def interrupted(*_: object) -> None:
    """Makes SIGTERM end a run as Control-C does, so that the log has the steps that were done."""
    raise KeyboardInterrupt


def main(words: list[str], steps: tuple[Step, ...] = STEPS, log: Path = LOG) -> int:
    """The command. Returns 1 if a step did not pass, and 130 if the run was interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", action="extend")
    parser.add_argument("--list", action="store_true", help="print the steps and run nothing")
    given = parser.parse_args(words)
    if unknown := set(given.only) - {one.name for one in steps}:
        parser.error(f"no step is called {', '.join(sorted(unknown))}: see --list")
    if given.list:
        for one in steps:
            print(f"{one.name:16}{'(on demand) ' if one.on_demand else ''}{one.command}")
        return 0
    chosen = [one for one in steps if (one.name in given.only if given.only else not one.on_demand)]
    os.chdir(ROOT)
    os.environ["PY"] = python()
    signal.signal(signal.SIGTERM, interrupted)
    passed = True
    for one in chosen:
        outcome, lines, stopped = run(one, ROOT / "build" / "test-all")
        print(f"{one.name}: {outcome}", flush=True)
        # The log is read again, because another run may have written it meanwhile.
        write(log, read(log) | {one.name: lines}, steps)
        if stopped:
            return 130
        passed = passed and outcome == "passed"
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
