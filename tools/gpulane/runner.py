"""Runs stages within their budgets, and says how each ended. A stage that fails stops no other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpulane.stages import BUILD, ROOT, Stage

PASSED, FAILED, LATE, SKIPPED = "passed", "failed", "timed out", "skipped"
TAIL = 4000  # characters: the end of the output that is kept of a stage that did not pass
KEPT = 0.7  # share of the later measurements' budgets that tests and builds must leave
HEARTBEAT = 10.0  # seconds between lines while a stage runs


@dataclass
class Outcome:
    """How a stage ended. It took `seconds` of its `budget`."""

    name: str
    status: str
    seconds: float = 0.0
    budget: float = 0.0
    exit_status: int | None = None
    detail: str = ""
    tests: dict[str, Any] | None = None
    tail: str = ""
    result: Any = field(default=None, repr=False)


@dataclass
class _Running:
    stage: Stage
    process: subprocess.Popen[bytes]
    started: float
    budget: float
    log: Path


class Runner:
    """Runs the stages group by group, and calls `report` whenever one has ended."""

    def __init__(
        self,
        seconds: float,
        variables: dict[str, str],
        say: Callable[[str], None],
        report: Callable[[list[Outcome]], None],
    ) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.variables, self.say, self.report = variables, say, report
        self.outcomes: list[Outcome] = []
        self._background: list[_Running] = []
        self._kept = 0.0
        BUILD.mkdir(parents=True, exist_ok=True)

    def run(self, stages: list[Stage]) -> list[Outcome]:
        """Runs all stages; returns their outcomes in the order they ended."""
        for group in sorted({stage.group for stage in stages}):
            members = [stage for stage in stages if stage.group == group]
            later = sum(stage.seconds for stage in stages if stage.measures and stage.group > group)
            # Time is kept for the measurements, so that they still run if tests hang. They seldom
            # need their whole budget.
            self._kept = 0.0 if members[0].measures else KEPT * later
            if any(stage.measures for stage in members):
                self._wait(self._background)  # nothing else runs during a measurement
                self._background = []
            running: list[_Running] = []
            for stage in members:
                if (one := self._start(stage)) is not None:
                    (self._background if stage.background else running).append(one)
            self._wait(running)
        self._wait(self._background)
        self._background = []
        return self.outcomes

    def _start(self, stage: Stage) -> _Running | None:
        bad = {each.name: each.status for each in self.outcomes if each.status != PASSED}
        lacking = [name for name in stage.needs if name in bad]
        left = self.deadline - time.monotonic() - self._kept
        if lacking:
            self._end(Outcome(stage.name, SKIPPED, detail=f"{lacking[0]} {bad[lacking[0]]}"))
            return None
        if left < 5:
            self._end(Outcome(stage.name, SKIPPED, detail="no time is left"))
            return None
        log = BUILD / f"{stage.name.replace(' ', '-')}.log"
        self.say(f"{stage.name} ...")
        if stage.result is not None:
            stage.result.unlink(missing_ok=True)
        budget = min(stage.seconds, left)
        seconds = str(max(5, int(budget - 15)))
        environment = {**os.environ, **self.variables, **stage.variables}
        with log.open("wb") as out:
            try:
                process = subprocess.Popen(
                    [word.replace("{seconds}", seconds) for word in stage.command],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log.with_suffix(".err").open("wb") if _own_stdout(stage) else out,
                    start_new_session=True,
                )
            except OSError as error:
                self._end(Outcome(stage.name, FAILED, detail=str(error)))
                return None
        return _Running(stage, process, time.monotonic(), budget, log)

    def _wait(self, running: list[_Running]) -> None:
        """Waits until all have ended, or were killed at the end of their budget."""
        pending = list(running)
        spoke = time.monotonic()
        while pending:
            for one in list(pending):
                late = time.monotonic() - one.started > one.budget
                if one.process.poll() is None and not late:
                    continue
                _kill(one.process)
                pending.remove(one)
                self._end(_outcome(one, late))
            if pending and time.monotonic() - spoke > HEARTBEAT:
                spoke = time.monotonic()
                for one in pending:
                    self.say(f"{one.stage.name}: {_last_line(one.log)}")
            time.sleep(0.05)

    def _end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        more = f": {outcome.detail}" if outcome.detail else ""
        self.say(f"{outcome.name} {outcome.status} ({outcome.seconds:.0f} s){more}")
        if outcome.status in (FAILED, LATE):
            for line in outcome.tail.splitlines()[-25:]:
                self.say(f"    {line}")
        self.report(self.outcomes)


def _own_stdout(stage: Stage) -> bool:
    return stage.measures and stage.result is None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the stage's process group. The stage is in a session of its own, so nothing else is in
    the group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _outcome(one: _Running, late: bool) -> Outcome:
    stage, code = one.stage, one.process.returncode
    text = one.log.read_text(errors="replace")
    told = text
    if _own_stdout(stage):
        told = one.log.with_suffix(".err").read_text(errors="replace")
    outcome = Outcome(
        stage.name,
        LATE if late else PASSED if code == 0 else FAILED,
        round(time.monotonic() - one.started, 1),
        round(one.budget, 1),
        code,
        tests=pytest_counts(text),
    )
    if outcome.status != PASSED:
        # Reports are committed, so they must not have the paths of one machine.
        outcome.tail = told[-TAIL:].replace(f"{ROOT}/", "").replace(f"{sys.prefix}/", "")
    if stage.measures:
        try:
            outcome.result = json.loads(stage.result.read_text() if stage.result else text)
        except (OSError, ValueError) as error:
            outcome.detail = f"no result: {error}"
            if outcome.status == PASSED:
                outcome.status = FAILED
    return outcome


def pytest_counts(text: str) -> dict[str, Any] | None:
    """The content of pytest's last lines: counts by outcome, and the tests that failed."""
    summaries = re.findall(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", text, re.MULTILINE)
    if not summaries:
        return None
    counts = {what: int(number) for number, what in re.findall(r"(\d+) ([a-z]+)", summaries[-1])}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return {**counts, "names": failed}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "")
