"""Starts the process that records a job without running it, and listens to it.

>>> facts = record("train:make_step", "job.trace.gz", world=8, steps=4)
>>> facts["peak_live_bytes"]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from glake import arguments, children, errors, files
from glake.errors import AdapterBuildError, BadTarget, PlanError
from glake.trace.format import opened
from glake.trace.job import ATTENTION, SCRATCH

MOST_STEPS = 10_000
MOST_RANKS = 1 << 20
_LAST_WORDS = 2000  # bytes of the child's output, shown if it dies
_GRACE = 5.0  # seconds the child has to end by itself

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Request:
    """The request to the child.

    Raises:
        PlanError: a value is out of range.
        WrongType: a value is of another type.
    """

    target: str
    out: str
    world: int = 1
    rank: int = 0
    steps: int = 4
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    attention: str = "flash"
    scratch: str = "default"
    total_bytes: int = 80 << 30

    def __post_init__(self) -> None:
        for name in ("world", "rank", "steps", "seed", "total_bytes"):
            object.__setattr__(self, name, arguments.count(name, getattr(self, name)))
        arguments.text_map("options", self.options)
        if not 1 <= self.world <= MOST_RANKS:
            raise PlanError(f"world {self.world}: must be from 1 to {MOST_RANKS} ranks")
        if not 0 <= self.rank < self.world:
            raise PlanError(f"rank {self.rank}: must be from 0 to {self.world - 1}")
        if not 1 <= self.steps <= MOST_STEPS:
            raise PlanError(f"steps {self.steps}: must be from 1 to {MOST_STEPS}")
        if self.attention not in ATTENTION:
            raise PlanError(f"attention {self.attention!r}: one of {', '.join(ATTENTION)}")
        if self.scratch not in SCRATCH:
            raise PlanError(f"scratch {self.scratch!r}: one of {', '.join(SCRATCH)}")


def record(
    target: str,
    out: str | os.PathLike[str] | IO[bytes],
    *,
    python: str = "",
    progress: Progress | None = None,
    **request: Any,
) -> dict[str, Any]:
    """Records a job's allocations into the trace `out` without running it. Returns its facts.

    Args:
        target: "module:function", found from the current directory, or the name of a ready plan.
        out: the trace to write, gzip if its name ends in .gz; or an open file, always gzip.
        python: the interpreter whose torch records (a CPU build); "" is this one.
        progress: called with (steps done, all steps, what is being done) when a step begins.
        request: world, rank, steps, seed, options, attention, scratch, total_bytes (of the device):
            see :class:`Request`.

    Raises:
        BadTarget: the target cannot be found or makes no step function.
        AdapterBuildError: no torch, or no compiler for the fake device.
        PlanError: a bad value, or what the job itself raised, with the user's own frames.
        WrongType: a value of another type.
        FileFailed: `out` cannot be written.
    """
    arguments.text("python", python)
    arguments.function("progress", progress)
    if not isinstance(out, str | os.PathLike):
        asked = Request(target=target, out=f"/dev/fd/{out.fileno()}", **request)
        return _listen(asked, python, progress, out.fileno())
    named = os.path.abspath(arguments.path("a trace", out))
    with files.replacing(named) as place:
        asked = Request(target=target, out=place, **request)
        opened(place, "wb").close()  # raises an error here, and not after a minute
        return _listen(asked, python, progress)


def _listen(
    asked: Request, python: str, progress: Progress | None, out: int | None = None
) -> dict[str, Any]:
    """Starts the child, which inherits the open file `out`, and follows it to its end."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as words:
        try:
            child = subprocess.Popen(
                _command(asked, python, writing, named=out is None),
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                pass_fds=[writing] if out is None else [writing, out],
            )
        except OSError as error:
            os.close(reading)
            raise PlanError(f"cannot start {python or sys.executable}: {error.strerror}") from error
        finally:
            os.close(writing)
        try:
            with os.fdopen(reading) as report:
                last = _follow(report, progress)
            status = child.wait()
        finally:
            _end(child)
        if "facts" in last:
            facts: dict[str, Any] = last["facts"]
            return facts
        words.seek(0)
        if "error" in last:
            said = _last_words(words.read()) if last.get("said") else ""
            raise _kind(last["error"])(last["text"] + said)
        raise PlanError(_died(status) + _last_words(words.read()))


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(_GRACE)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _command(asked: Request, python: str, report: int, named: bool) -> list[str]:
    request = {**asdict(asked), "options": dict(asked.options)}
    request |= {"report": report, "parent": os.getpid()}
    request |= {"named": named, "packed": None if named else True}
    return children.command("glake.trace.child", json.dumps(request), python=python)


def _environment() -> dict[str, str]:
    """The child's environment. torch loads neither glake's adapter nor another one there."""
    kept = {key: value for key, value in os.environ.items() if key != "GLAKE_ALLOCATOR"}
    return {**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def _follow(report: Any, progress: Progress | None) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for line in report:
        if not line.endswith("\n"):
            break  # the child died while it wrote this line
        last = json.loads(line)
        if "doing" in last and progress is not None:
            progress(last["done"], last["of"], last["doing"])
    return last


def _kind(name: str) -> type[Exception]:
    known: dict[str, type[Exception]] = {
        each.__name__: each for each in (BadTarget, PlanError, AdapterBuildError)
    }
    found = known.get(name) or getattr(errors, name, PlanError)
    return found if isinstance(found, type) and issubclass(found, Exception) else PlanError


def _died(status: int) -> str:
    if status >= 0:
        return f"the recording process ended with exit status {status}"
    how = f"the recording process was ended by {signal.Signals(-status).name}"
    return how + (" (out of host memory?)" if -status == signal.SIGKILL else "")


def _last_words(output: bytes) -> str:
    tail = output[-_LAST_WORDS:].decode("utf-8", "replace").strip()
    return f"; its last words:\n{tail}" if tail else ""
