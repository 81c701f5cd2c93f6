"""The process that records a job without running it: glake.children runs it with REQUEST.

REQUEST is the JSON of a :class:`glake.trace.record.Request`. Progress, the facts at the end, or the
error go to the file descriptor that it names, as one JSON object a line. It needs its own process,
because the fake device must be loaded before torch, and stubs torch.cuda for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import IO, Any

from glake.errors import BadTarget, GlakeError
from glake.trace.job import Job, Step

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FRAMES = 4  # of the user's own code, shown with an error


class Ended(BaseException):
    """Raised when the parent process ends this one, or has itself ended."""


def main(argument: str) -> int:
    """Records the job. Returns 0, 2 after an error that was reported, or 143 if it was told to
    end."""
    request = json.loads(argument)
    ready = ":" not in request["target"]
    del sys.argv[1:]  # a job's own argument parser must not see these
    with os.fdopen(request.pop("report"), "w") as report:
        try:
            _end_with(request.pop("parent"))
            _tell(report, facts=_record(request, report))
        except Ended:
            if request["named"] and os.path.isfile(request["out"]):  # it may be a device
                os.unlink(request["out"])
            return 143
        except SystemExit as left:
            _tell(report, error="PlanError", text=_left(left), said=True)
        except MemoryError:
            _tell(report, error="PlanError", text="the host ran out of memory while recording")
        except GlakeError as error:
            _tell(report, error=type(error).__name__, text=_described(error, ready))
        except Exception as error:
            _tell(report, error="PlanError", text=_described(error, ready))
        else:
            return 0
    return 2


def _end_with(parent: int) -> None:
    """Makes SIGTERM end this process tidily. The kernel also sends it when the parent dies."""

    def end(*_: Any) -> None:
        raise Ended

    signal.signal(signal.SIGTERM, end)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before that call
        raise Ended


def _tell(report: IO[str], **message: Any) -> None:
    report.write(json.dumps(message) + "\n")
    report.flush()


def _record(request: dict[str, Any], report: IO[str]) -> dict[str, Any]:
    job = Job(
        world=request["world"],
        rank=request["rank"],
        steps=request["steps"],
        seed=request["seed"],
        options=request["options"],
    )
    from glake.trace import fake_cuda

    fake_cuda.load(min(job.world, 8), request["attention"])
    import torch  # noqa: F401 (only now: see above)

    from glake.trace import session

    started = time.monotonic()

    def progress(done: int, doing: str) -> None:
        _tell(report, done=done, of=job.steps + 1, doing=doing)

    facts = session.record(request, job, lambda: load_target(request["target"]), progress)
    return {**facts, "seconds": round(time.monotonic() - started, 2)}


def load_target(target: str) -> Callable[[Job], Step]:
    """The make_step that "module:function" names. The module is first looked for in the current
    directory. A name without a colon is one of the ready plans (glake.trace.plans). Raises
    BadTarget."""
    module_name, colon, name = target.partition(":")
    if not colon:
        return _ready_plan(target)
    if not module_name or not name.isidentifier():
        raise BadTarget(f"target {target!r}: give MODULE:FUNCTION, such as train:make_step")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name != module_name and not module_name.startswith(f"{missing.name}."):
            raise
        raise BadTarget(
            f"target {target!r}: there is no module {missing.name!r} in {os.getcwd()} or on "
            "Python's path (give it without .py, and run in its directory)"
        ) from missing
    make_step = getattr(module, name, None)
    if make_step is None:
        raise BadTarget(f"target {target!r}: {module.__file__} has no {name!r}")
    if not callable(make_step):
        raise BadTarget(f"target {target!r}: {name} is {type(make_step).__name__}, not a function")
    return _with_job(make_step)


def _ready_plan(name: str) -> Callable[[Job], Step]:
    try:
        plans = importlib.import_module("glake.trace.plans")
    except ModuleNotFoundError as missing:
        raise BadTarget(
            f"target {name!r}: give MODULE:FUNCTION, such as train:make_step"
        ) from missing
    return _with_job(plans.find(name))


def _with_job(make_step: Callable[..., Any]) -> Callable[[Job], Step]:
    try:
        takes = len(inspect.signature(make_step).parameters)
    except (TypeError, ValueError):
        takes = 1
    return make_step if takes else lambda job: make_step()


def _left(left: SystemExit) -> str:
    """The message about a job that called sys.exit()."""
    lines = [_frame(each) for each in traceback.extract_tb(left.__traceback__) if _own(each)]
    code = "" if left.code is None else repr(left.code)
    text = (
        f"the job called sys.exit({code}) here; to be planned it must go on: make_step returns the "
        "step function, and that returns once the step is done"
    )
    return "\n".join([*lines[-_FRAMES:], text])


def _described(error: BaseException, ready: bool = False) -> str:
    """The error's text, after the last frames of the user's own code, the innermost last. A ready
    plan has no frames of the user. Then the error alone is enough, or comes first."""
    if ready and isinstance(error, GlakeError):
        return str(error)
    lines: list[str] = []
    shown: BaseException | None = error
    while shown is not None and not lines:
        frames = traceback.extract_tb(shown.__traceback__)
        lines = [_frame(each) for each in frames if _own(each)]
        shown = shown.__cause__
    if not lines and not isinstance(error, GlakeError):  # not the user's fault: say where it is
        lines = [_frame(each) for each in traceback.extract_tb(error.__traceback__)]
    kind = "" if isinstance(error, GlakeError) else f"{type(error).__name__}: "
    text = f"{kind}{error}".strip()
    if isinstance(error, NotImplementedError):
        text += (
            "\n(an operator without a fake kernel: a compiled extension must register one with "
            "torch.library.register_fake)"
        )
    if ready:
        return "\n".join([text, "(in a ready plan, at:", *lines[-_FRAMES:]]) + ")"
    return "\n".join([*lines[-_FRAMES:], text])


def _own(frame: traceback.FrameSummary) -> bool:
    trace = os.path.dirname(os.path.abspath(__file__))
    name = frame.filename
    if name.startswith(os.path.join(trace, "plans")):
        return True
    if name.startswith((os.path.dirname(trace), "<")):
        return False
    return not any(part in name for part in ("site-packages", "dist-packages", sys.base_prefix))


def _frame(frame: traceback.FrameSummary) -> str:
    name = os.path.relpath(frame.filename) if frame.filename.startswith("/") else frame.filename
    return f"{name}:{frame.lineno} in {frame.name}: {frame.line}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
