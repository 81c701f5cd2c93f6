"""Goodput: the share of training time that contributed to the result, from a run's log.

A kill costs the time of three things: the steps that are done again, the step that was under way,
and restoring the state. The time in which the interpreter starts, imports torch and joins the group
is counted separately.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glake.units import counted


@dataclass
class Goodput:
    """Seconds of rank 0."""

    useful: float = 0.0  # of the steps that count, without stalls by checkpoints
    stalled: float = 0.0  # in which checkpoints stalled these steps
    repeated: float = 0.0  # steps that were done again later
    broken: float = 0.0  # steps under way at a kill; at most one usual step's time for each kill
    restoring: float = 0.0  # after a kill, until steps take the usual time again
    restarting: float = 0.0  # starts of the interpreter and torchrun, and all of the first start
    restarts: int = 0  # by torchrun, including any that a kill ended before it wrote to the log

    @property
    def share(self) -> float:
        """The useful time, divided by all time except `restarting`."""
        lost = self.stalled + self.repeated + self.broken + self.restoring
        return self.useful / (self.useful + lost) if self.useful else 0.0

    @property
    def share_of_all(self) -> float:
        """The useful time, divided by all time."""
        part = self.share
        return self.useful / (self.useful / part + self.restarting) if part else 0.0

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return asdict(self) | {"share": self.share, "share_of_all": self.share_of_all}

    def __str__(self) -> str:
        return (
            f"goodput {self.share:.1%} ({self.useful:.1f} s of useful steps; lost: "
            f"{self.stalled:.2f} s stalled by checkpoints, {self.repeated:.2f} s repeated, "
            f"{self.broken:.2f} s broken off, {self.restoring:.2f} s restoring); "
            f"{counted(self.restarts, 'restart')}, {self.restarting:.1f} s of interpreters "
            f"starting apart ({self.share_of_all:.1%} with them)"
        )


def records(path: Path) -> list[dict[str, Any]]:
    """The records of a log. Lines that a kill cut off, or that the trainer did not write, are left
    out."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "event" in record:
            found.append(record)
    return found


def _last_run(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of the last run in the log."""
    found: list[dict[str, Any]] = []
    run = job = None
    for each in log:
        if each["event"] == "start":
            # A run without a checkpoint folder has no name. Nothing goes on from it, except that
            # the same torchrun starts it again.
            again = each.get("restart", 0) > 0 and each.get("job") == job
            if each.get("run") != run or (run == "" and not again):
                found = []
            run, job = each.get("run"), each.get("job")
        found.append(each)
    return found


def last_step(log: list[dict[str, Any]], run: str) -> int:
    """The last step in the log of the run with this name. 0: the log's last run is another one."""
    found = _last_run(log)
    same = bool(found) and found[0].get("run") == run
    return (
        max((each["step"] for each in found if each["event"] == "step"), default=0) if same else 0
    )


def last_of_each_step(log: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The records of the last run that count: the last record of each step."""
    return {each["step"]: each for each in _last_run(log) if each["event"] == "step"}


def goodput(log: list[dict[str, Any]]) -> Goodput:
    """The goodput of a run's records, with all its restarts.

    The first step of a process takes longer than others. The time above the usual step's counts as
    restoring. Records before the start of the last run belong to another run, and are left out.
    """
    log = _last_run(log)
    counted = last_of_each_step(log)
    usual = statistics.median(each["seconds"] for each in counted.values()) if counted else 0.0
    found, before, number, job = Goodput(), {"event": "end"}, -1, None
    killed = False  # whether the last start followed a kill, and not the end of a run
    for each in log:
        beginning = 0.0
        if each["event"] == "start":
            killed = before["event"] != "end"
            restart = each.get("restart", 0)  # each torchrun counts its own from 0
            same = each.get("job") == job and restart > number
            found.restarts += restart - number if same else restart + 1
            number, job = restart, each.get("job")
            found.restarting += each["joined"] - each["process"]
            beginning = each["time"] - each["joined"]
            if killed:
                gap = max(0.0, each["process"] - before["time"])
                found.broken += min(gap, usual)
                found.restarting += gap - min(gap, usual)
        elif each["event"] == "step":
            if before["event"] == "start":
                beginning = max(0.0, each["seconds"] - each["stall_s"] - usual)
            if counted[each["step"]] is each:
                found.stalled += each["stall_s"]
                found.useful += each["seconds"] - each["stall_s"] - beginning
            else:
                found.repeated += each["seconds"] - beginning
        if killed:
            found.restoring += beginning
        else:
            found.restarting += beginning
        before = each
    found.restarts = max(0, found.restarts - 1)  # the first start is no restart
    return found
