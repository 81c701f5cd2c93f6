"""One run of a job on simulated GPUs under one allocator, and what its ranks reported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from glake.dryrun import libraries
from glake.dryrun.child import VARIABLE, library_refused, with_segments
from glake.dryrun.gpus import Machine
from glake.dryrun.result import DryRun, Refusal
from glake.dryrun.stdin import RepeatedInput
from glake.errors import DryRunError

_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_SEGMENTS = {"native": False, "expandable": True}  # whether PyTorch's own segments may grow
_SHOWN = 20  # how many of a quiet job's last lines are shown if it fails
_GRACE = 5.0  # seconds between asking a job's processes to end and killing them


@dataclass(frozen=True)
class Launch:
    """A command line, the machine on which it runs, and the place of its output (None: this
    process's)."""

    command: tuple[str, ...]
    machine: Machine
    outside: str | int | None = None
    numbers: bool = (
        False  # True: ops compute, in real memory; False: kernels are counted, in phantom memory
    )
    known: bool = True  # without numbers: ops on small values from the host are computed
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    output: IO[str] | IO[bytes] | int | None = None
    stdin: RepeatedInput | None = None  # None: this process's, which the runs share
    quiet: bool = False  # its output is shown only if it fails
    keep: Path | None = None  # folder for snapshots; None: none are made
    timeout_s: float | None = None


def run_once(launch: Launch, allocator: str) -> DryRun:
    """Runs the job once. Raises DryRunError if it fails for another reason than memory."""
    name = f"glake-dry-{uuid.uuid4().hex[:12]}"
    folder = Path(tempfile.mkdtemp(prefix="glake-dry-run-"))
    request = {
        "folder": str(folder),
        "snapshot": launch.keep is not None,
        "numbers": launch.numbers,
        "known": launch.known,
        "expandable": _SEGMENTS.get(allocator),
        "outside": None if launch.outside is None else str(launch.outside),
    }
    environment = _environment(launch, allocator, name) | {VARIABLE: json.dumps(request)}
    started = time.monotonic()
    try:
        with (folder / "words").open("w+b") as words:
            code = _run(launch, environment, words if launch.quiet else None)
        reports = [json.loads(each.read_text()) for each in sorted(folder.glob("*.json"))]
        seconds = time.monotonic() - started
        _check_end(launch, allocator, code, reports, folder / "words")
        made = _gathered(launch, allocator, code, reports, seconds)
        return _with_files(launch, made, folder, reports)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(launch: Launch, allocator: str, name: str) -> dict[str, str]:
    made = {
        key: text for key, text in launch.environment.items() if not key.startswith("GLAKE_SIM_")
    }
    for key in ("GLAKE_ALLOCATOR", "GLAKE_STRICT", "GLAKE_DRIVER", "GLAKE_POLICY"):
        made.pop(key, None)
    if allocator in _SEGMENTS:
        conf = next((key for key in _CONF if key in made), _CONF[0])
        for key in _CONF:
            made[key] = with_segments(made.get(key, ""), _SEGMENTS[allocator] and key == conf)
            if not made[key]:
                del made[key]
    if allocator in ("glake", "compact"):
        policy = "compact" if allocator == "compact" else "balanced"
        made |= {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
        made["GLAKE_POLICY"] = policy
    made |= {
        "GLAKE_SIM_PRESET": launch.machine.platform,
        "GLAKE_SIM_DEVICES": str(launch.machine.gpus),
        "GLAKE_SIM_MEMORY": str(launch.machine.memory_bytes),
        "GLAKE_SIM_PHANTOM": "0" if launch.numbers else "1",
        "GLAKE_SIM_MACHINE": name,
    }
    return libraries.environment(made)


def _run(launch: Launch, environment: Mapping[str, str], words: IO[bytes] | None) -> int:
    """Runs the job, and returns its exit code. Afterwards its processes are gone, even if an error
    or a signal ends this call."""
    # A session of its own, so that one signal reaches every process the job starts.
    stdin = nullcontext() if launch.stdin is None else launch.stdin.once()
    with (
        stdin as given,
        subprocess.Popen(
            launch.command,
            env=environment,
            stdin=given,
            stdout=launch.output if words is None else words,
            stderr=words,
            start_new_session=True,
        ) as child,
    ):
        try:
            return child.wait(launch.timeout_s)
        except subprocess.TimeoutExpired:
            raise DryRunError(f"the job was still running after {launch.timeout_s:g} s") from None
        finally:
            _end(child)


def _end(child: subprocess.Popen[Any]) -> None:
    for number, wait in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + wait
        while time.monotonic() < until:
            child.poll()
            try:
                os.killpg(child.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)


def _check_end(
    launch: Launch, allocator: str, code: int, reports: list[dict[str, Any]], words: Path
) -> None:
    """Raises DryRunError if a job failed for another reason than memory, or used no GPU."""
    command = " ".join(launch.command[:3])
    if code != 0 and not any(_ended_by_memory(each) for each in reports):
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        said = words.read_text(errors="replace").splitlines()[-_SHOWN:]
        raise DryRunError(
            f"the job failed under {allocator}, not for lack of memory: {command} ... ended with "
            f"{ended}; what it printed says why" + "".join(f"\n  {line}" for line in said)
        )
    if not reports:
        raise DryRunError(
            f"no process of the job used a GPU: {command} ... ended without touching CUDA (does it "
            "choose cuda where torch.cuda.is_available() is true?)"
        )


def _gathered(
    launch: Launch, allocator: str, code: int, reports: list[dict[str, Any]], seconds: float
) -> DryRun:
    by_memory = code != 0  # _check_end has raised an error for any other failure
    peaks: dict[str, int] = {"allocated_bytes": 0, "reserved_bytes": 0}
    for report in reports:
        for _, kind, peak in report["peaks"]:
            peaks[kind] = max(peaks[kind], peak)
    reports = [each for each in reports if not _only_looked(each)] or reports
    most = max(reports, key=lambda each: sum(each["driver_calls"].values()))
    fullest = max(reports, key=lambda each: max((peak for *_, peak in each["peaks"]), default=0))
    return DryRun(
        allocator=allocator,
        capacity_bytes=launch.machine.memory_bytes,
        peak_allocated_bytes=peaks["allocated_bytes"],
        peak_reserved_bytes=peaks["reserved_bytes"],
        outside_bytes=max(each["outside_bytes"] for each in reports),
        driver_calls=sum(most["driver_calls"].values()),
        driver_us=round(max(each["driver_us"] for each in reports), 1),
        steps=min(each["steps"] for each in reports),
        oom=_refusal(reports) if by_memory else None,
        host_rss_bytes=max(each["host_rss_bytes"] for each in reports),
        ranks=len(reports),
        exit_code=code,
        seconds=round(seconds, 2),
        driver_us_by={
            table: round(max(each["driver_us_by"][table] for each in reports), 1)
            for table in most["driver_us_by"]
        },
        step_seconds=round(max(each["step_seconds"] for each in reports), 3),
        refusals=sum(each["refused"] for each in reports),
        history=tuple((held, live) for held, live in fullest["history"]),
        driver_history=tuple((calls, round(us, 1)) for calls, us in most["driver_history"]),
    )


def _only_looked(report: dict[str, Any]) -> bool:
    """Whether this process asked for no memory of its GPU, as those in which torch.compile
    compiles. It is no rank, and does no steps."""
    return not (report["refused"] or report["error"] or any(peak for *_, peak in report["peaks"]))


def _ended_by_memory(report: dict[str, Any]) -> bool:
    """Whether this process of a failed job ended because a request found no memory."""
    error = str(report["error"])
    if error:
        return "out of memory" in error.lower() or library_refused(error)
    return bool(report["refused"])


def _refusal(reports: list[dict[str, Any]]) -> Refusal:
    ended = [each for each in reports if _ended_by_memory(each)]
    report = min(ended, key=lambda each: each["steps"])
    last = report["refusals"][-1] if report["refusals"] else {}
    if last.get("requested_bytes") and library_refused(str(report["error"])):
        last = {}  # a request of the allocator's, after which the job went on
    return Refusal(
        rank=report["rank"],
        device=last.get("device", 0),
        requested_bytes=last.get("requested_bytes", 0),
        step=last.get("step", report["steps"]),
        message=str(report["error"]),
        holders=tuple((where, held, count) for where, held, count in last.get("holders", [])),
    )


def _with_files(
    launch: Launch, made: DryRun, folder: Path, reports: list[dict[str, Any]]
) -> DryRun:

    if launch.keep is None:
        return made
    kept = []
    for name in (name for report in reports for name in report["files"]):
        target = launch.keep / f"{made.allocator}-{name}"
        shutil.move(folder / name, target)
        kept.append(str(target))
    return replace(made, files=tuple(sorted(kept)))
