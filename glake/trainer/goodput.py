"""Goodput: the share of training time that ended in the result, from a run's log.

Kills cost the steps that are done again, the step that was under way and the restoring of the
state; that the interpreter starts, imports torch and joins the group is counted apart.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Goodput:
    """Seconds of rank 0."""

    useful: float  # of the steps that count, without what checkpoints stalled them
    stalled: float  # of these steps, by checkpoints
    repeated: float  # steps that were done again later
    broken: float  # steps under way when a rank was killed; one step's time for each kill at most
    restoring: float  # after a kill, until steps take as long as they do
    restarting: float  # the interpreter's, torchrun's and the first start's: not in the share
    restarts: int

    @property
    def share(self) -> float:
        """useful / all but restarting."""
        lost = self.stalled + self.repeated + self.broken + self.restoring
        return self.useful / (self.useful + lost) if self.useful else 0.0

    @property
    def share_of_all(self) -> float:
        """useful / all."""
        lost = self.stalled + self.repeated + self.broken + self.restoring + self.restarting
        return self.useful / (self.useful + lost) if self.useful else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"share": self.share, "share_of_all": self.share_of_all}

    def __str__(self) -> str:
        return (
            f"goodput {self.share:.1%} ({self.useful:.1f} s of useful steps; lost: "
            f"{self.stalled:.2f} s stalled by checkpoints, {self.repeated:.2f} s repeated, "
            f"{self.broken:.2f} s broken off, {self.restoring:.2f} s restoring); "
            f"{self.restarts} restarts, {self.restarting:.1f} s of interpreters starting "
            f"apart ({self.share_of_all:.1%} with them)"
        )


def records(path: Path) -> list[dict[str, Any]]:
    """A log's records; a line that a kill tore is left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


_FIELDS = {
    "start": ("process", "joined", "time"),
    "step": ("step", "seconds", "stall_s", "time"),
    "end": ("time",),
}


def _last_run(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trainer's own records of the last run that the log is of."""
    found: list[dict[str, Any]] = []
    run: Any = None
    for each in log:
        fields = _FIELDS.get(str(each.get("event")))
        if fields is None or not all(isinstance(each.get(name), (int, float)) for name in fields):
            continue  # somebody else's
        if each["event"] == "start":
            if each.get("run") != run:
                found = []
            run = each.get("run")
        found.append(each)
    return found


def last_of_each_step(log: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The records of the last run that count: of each step the last one."""
    return {each["step"]: each for each in _last_run(log) if each["event"] == "step"}


def goodput(log: list[dict[str, Any]]) -> Goodput:
    """Of a run's records, all its restarts included.

    The first step of a process takes longer than others; what is above the usual counts as
    restoring. Where a run began anew, what was before it is another's.
    """
    log = _last_run(log)
    counted = last_of_each_step(log)
    usual = statistics.median(each["seconds"] for each in counted.values()) if counted else 0.0
    first_start = next((each for each in log if each["event"] == "start"), None)
    spent = dict.fromkeys(("useful", "stalled", "repeated", "broken"), 0.0)
    spent |= {"restoring": 0.0, "restarting": 0.0}
    before: dict[str, Any] = {}
    first = True  # whether the last start was of a run that nothing had killed
    for each in log:
        if each["event"] == "start":
            # What goes on with a run that had ended was not killed.
            first = each is first_start or before.get("event") == "end"
            spent["restarting"] += each["joined"] - each["process"]
            spent["restarting" if first else "restoring"] += each["time"] - each["joined"]
            if not first:
                gap = max(0.0, each["process"] - before["time"])
                spent["broken"] += min(gap, usual)
                spent["restarting"] += gap - min(gap, usual)
        elif each["event"] == "step":
            warming = before.get("event") == "start"
            slow = max(0.0, each["seconds"] - each["stall_s"] - usual) if warming else 0.0
            spent["restarting" if first else "restoring"] += slow
            if counted[each["step"]] is each:
                spent["stalled"] += each["stall_s"]
                spent["useful"] += each["seconds"] - each["stall_s"] - slow
            else:
                spent["repeated"] += each["seconds"] - slow
        before = each
    starts = sum(each["event"] == "start" for each in log)
    return Goodput(**spent, restarts=max(0, starts - 1))
