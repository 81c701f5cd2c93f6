"""Runs many small cases in one start of PyTorch, as its import takes far longer than most cases.
Each case has a process of its own, forked before CUDA is initialised.

    python forked.py SECONDS FILE...    (over the stand-ins; run by tests/real/forking.py)

In a FILE each function named case_* is a case. A FILE without such functions is one case, run as
a script. Each case prints a line of JSON: {"case", "kind", "text", "log", "seconds"}. kind is ""
for a case that returned, the exception's class (torch.OutOfMemoryError, RuntimeError,
SystemExit), "exit N" or "signal N" for a process that ended by itself, or "timeout". text is the
exception's, and log is what the process printed.
"""

import gc
import importlib.util
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401 (otherwise each case would import it)

Case = Callable[[], object]


def cases_of(file: Path) -> Iterator[tuple[str, Case]]:
    if "def case_" not in file.read_text():
        yield file.stem, lambda: runpy.run_path(str(file), run_name="__main__")
        return
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # so that its functions can be sent to other processes
    spec.loader.exec_module(module)
    for name, value in vars(module).items():
        if name.startswith("case_") and isinstance(value, types.FunctionType):
            yield f"{file.stem}.{name.removeprefix('case_')}", value


def named(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def in_child(case: Case, log: int, result: Path) -> None:
    """Runs the case, and ends the process as a Python program would. Never returns."""
    os.setpgid(0, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    kind = text = ""
    try:
        case()
    except BaseException as error:
        kind, text = named(error), str(error)
        traceback.print_exc()
    result.write_text(json.dumps([kind, text]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def wait(pid: int, seconds: float) -> str:
    """How the process ended. "" if it ended by itself with 0."""
    end = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"signal {-code}" if code < 0 else f"exit {code}"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "timeout"


def run(case: Case, seconds: float, folder: Path) -> dict[str, str]:
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            in_child(case, log.fileno(), result)
        ended = wait(pid, seconds)
        log.seek(0)
        printed = log.read().decode(errors="replace")
    kind, text = json.loads(result.read_text()) if not ended and result.exists() else (ended, "")
    if not ended and not result.exists():
        kind = "exit 0"  # before the case was over
    seconds = f"{time.monotonic() - begun:.1f}"
    return {"kind": kind, "text": text, "log": printed, "seconds": seconds}


def main(seconds: float, files: list[Path]) -> None:
    assert not torch.cuda.is_initialized()
    gc.collect()
    gc.freeze()  # cases collect garbage, and torch's own objects would take half a second each time
    folder = Path(tempfile.mkdtemp())  # not removed at exit, where cases would remove it too
    for file in files:
        sys.path[0] = str(file.parent)
        for name, case in cases_of(file):
            print(json.dumps({"case": name, **run(case, seconds, folder)}), flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(float(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
