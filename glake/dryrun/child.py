"""Runs inside the job: counts steps, peaks and driver calls, and reports them to the starting
process.

glake_autoload starts this at the end of `import torch` in every process of a dry run. Each process
that uses a GPU writes one JSON file into the folder named by the environment, four times a second
and at its end. The parent watches how the process ends. The script itself is not changed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import multiprocessing.process
import os
import re
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from glake import simcuda
from glake.dryrun.gpus import outside_bytes
from glake.trace.replay import default_costs

VARIABLE = "_GLAKE_DRY_RUN"  # not GLAKE_...: it is no option of glake's
_BETWEEN = 0.25  # seconds between two reports of a running process
_MOST_HISTORY = 4096
_MOST_REFUSALS = 64
_HOLDERS = 12
_CHOSEN = ("expandable_segments", "backend")  # keys that the allocator of a run decides
# How torch prints that a library of CUDA's found no memory for itself. NCCL says "out of memory".
_LIBRARY_REFUSED = re.compile(
    r"(CUDA|cuDNN|cuFFT|cusolver) error: (CU(BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED|"
    r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|CUFFT_ALLOC_FAILED)"
)
# The driver calls of an allocator: memory, events and waits. Launches and copies are the job's.
COUNTED = (
    "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
    "cuMemAddressReserve", "cuMemAddressFree", "cuMemAlloc", "cuMemFree", "cuMemHostAlloc",
    "cuMemAllocHost", "cuMemFreeHost", "cuMemHostRegister", "cuMemHostUnregister",
    "cuEventCreate", "cuEventDestroy", "cuEventRecord", "cuEventRecordWithFlags", "cuEventQuery",
    "cuEventSynchronize", "cuStreamWaitEvent", "cuStreamQuery", "cuStreamSynchronize",
    "cuCtxSynchronize", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
)  # fmt: skip


def _present_folder() -> str:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


_BEGAN_IN = _present_folder()


def with_segments(conf: str, expandable: bool) -> str:
    """The text of PYTORCH_CUDA_ALLOC_CONF for PyTorch's own allocator, with expandable segments or
    without. PyTorch allows blanks in it."""
    pairs = [pair.strip() for pair in conf.split(",")]
    kept = [pair for pair in pairs if pair and not pair.startswith(_CHOSEN)]
    return ",".join([*kept, *(["expandable_segments:True"] if expandable else [])])


def _have_segments(expandable: bool) -> None:
    """Makes PyTorch's allocator the one of this run. A script may have set the variable itself."""
    import torch

    found = torch.cuda.memory._snapshot()["allocator_settings"]
    if found["expandable_segments"] != expandable:
        # What the script chose besides is given again, because most of it would get its default
        # back.
        rest = with_segments(found["PYTORCH_CUDA_ALLOC_CONF"], False)
        conf = f"{rest},expandable_segments:{expandable}".lstrip(",")
        torch._C._accelerator_setAllocatorSettings(conf)


def library_refused(error: str) -> bool:
    """Whether this text of an exception says that a library of CUDA's (cuBLAS, cuDNN, cuFFT or
    cuSOLVER) found no memory for itself."""
    return _LIBRARY_REFUSED.search(error) is not None


def start() -> None:
    """Begins to watch this process, if it belongs to a dry run. Touches no device."""
    request = json.loads(os.environ[VARIABLE])
    world = int(os.environ.get("WORLD_SIZE") or 1)
    outside = outside_bytes(request["outside"], world)
    os.environ["GLAKE_SIM_CONTEXT_MEMORY"] = str(outside)  # before the driver reads it
    _Watch(Path(request["folder"]), bool(request["snapshot"]), outside).install()
    if request["expandable"] is not None:
        import torch

        torch.cuda._lazy_call(functools.partial(_have_segments, request["expandable"]))
    from glake.dryrun import numbers

    if request["numbers"]:
        numbers.install()
    elif request["known"]:
        numbers.install_known()


class _Watch:
    """Collects what is known of this process, and writes it down."""

    def __init__(self, folder: Path, snapshot: bool, outside: int) -> None:
        self._folder = folder
        self._snapshot = snapshot
        self._outside = outside
        self._begin()

    def _begin(self) -> None:
        """Begins with nothing known, in a new process."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._steps = 0
        self._history: list[tuple[int, int]] = []
        self._driver_history: list[tuple[int, float]] = []
        self._stepped_at: list[float] = []
        self._refusals: list[dict[str, Any]] = []
        self._refused = 0
        self._peaks: Counter[tuple[int, str]] = Counter()
        self._error = ""

    def install(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: self._stepped())
        torch.cuda._lazy_call(self._initialized)
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._begin)
        self._see_exits()
        self._see_errors()

    def _see_exits(self) -> None:
        """Sees ends without atexit. Forked children of multiprocessing end so."""
        exit_now = os._exit

        @functools.wraps(exit_now)
        def leave(status: int) -> NoReturn:
            self._leave()
            exit_now(status)

        os._exit = leave

    def _see_errors(self) -> None:
        """Sees the exception that ends this process, also in ranks of torch.multiprocessing.spawn,
        which catches it."""
        said = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self._note(error)
            said(kind, error, trace)

        sys.excepthook = hook
        process: Any = multiprocessing.process.BaseProcess
        run = process.run

        @functools.wraps(run)
        def run_noting(this: Any) -> None:
            with self._noting():
                run(this)

        process.run = run_noting
        # torch.multiprocessing.spawn is a function of the same name as its module.
        module: Any = importlib.import_module("torch.multiprocessing.spawn")
        wrapped = module._wrap

        @functools.wraps(wrapped)  # it keeps the name, by which it is pickled
        def wrap(function: Callable[..., Any], *rest: Any) -> None:
            def noting(*args: Any) -> None:
                with self._noting():
                    function(*args)

            wrapped(noting, *rest)

        module._wrap = wrap

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, SystemExit):
                self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        self._error = f"{type(error).__name__}: {error}"
        if library_refused(self._error) and _cuda_is_used():
            self._note_library()

    def _initialized(self) -> None:
        """Called when CUDA has just been initialised in this process."""
        import torch

        if torch.cuda.get_allocator_backend() == "cudaMallocAsync":
            raise RuntimeError(
                "PYTORCH_CUDA_ALLOC_CONF has backend:cudaMallocAsync: glake dry-run knows the "
                "allocators of PyTorch and glake; leave it out of the script"
            )
        reset = torch._C._cuda_resetPeakMemoryStats

        def keep_peaks(device: int) -> None:
            self._measure()
            reset(device)

        torch._C._cuda_resetPeakMemoryStats = keep_peaks
        # Only CUDA builds have this function. The CPU build's stubs lack it.
        torch._C._cuda_attach_out_of_memory_observer(self._refuse)  # type: ignore[attr-defined]
        # "state" keeps the stacks of live blocks but no events, so a long job takes little memory.
        torch.cuda.memory._record_memory_history(
            "all" if self._snapshot else "state", stacks="python"
        )
        self._write()
        threading.Thread(target=self._keep_writing, name="glake-dry-run", daemon=True).start()

    def _keep_writing(self) -> None:
        """Runs on a thread. Nobody may know when the process will end, or has no time to say so."""
        over = self._over
        while not over.wait(_BETWEEN):
            with self._lock:
                if not over.is_set():  # else the last report may be there already
                    self._write()

    def _stepped(self) -> None:
        self._steps += 1
        if not _cuda_is_used():
            return
        held = self._measure()
        if len(self._history) < _MOST_HISTORY:
            self._history.append(held)
            self._stepped_at.append(time.monotonic())
            calls = _driver_calls()
            self._driver_history.append((sum(calls.values()), _driver_us(calls)))

    def _measure(self) -> tuple[int, int]:
        """Notes the peaks. Returns the present reserved and allocated bytes of the device that
        has reserved most."""
        import torch

        fullest = (0, 0)
        for device in range(torch.cuda.device_count()):
            stats = torch._C._cuda_memoryStats(device)
            for kind in ("allocated_bytes", "reserved_bytes"):
                peak = int(stats[kind]["all"]["peak"])
                with self._lock:
                    self._peaks[device, kind] = max(self._peaks[device, kind], peak)
            now = [
                int(stats[kind]["all"]["current"]) for kind in ("reserved_bytes", "allocated_bytes")
            ]
            fullest = max(fullest, (now[0], now[1]))
        return fullest

    def _refuse(self, device: int, requested: int, total: int, free: int) -> None:
        """PyTorch's observer of requests that found no memory. It is called before the
        exception."""
        self._refused += 1
        if len(self._refusals) < _MOST_REFUSALS:
            found = {"device": device, "requested_bytes": int(requested), "step": self._steps}
            self._refusals.append({**found, "holders": _holders(device)})
        self._write()

    def _note_library(self) -> None:
        """Notes that a library was refused memory, which PyTorch's observer is not told. Nobody
        knows how many bytes it asked for: 0 stands for them."""
        import torch

        device = torch.cuda.current_device()
        self._refused += 1
        found = {"device": device, "requested_bytes": 0, "step": self._steps}
        self._refusals.append({**found, "holders": _holders(device)})

    def _leave(self) -> None:
        if self._over.is_set() or not _cuda_is_used():
            return
        self._over.set()
        files = []
        if self._snapshot:
            import torch

            path = self._folder / f"snapshot-rank{_rank()}-{self._pid}.pickle"
            torch.cuda.memory._dump_snapshot(str(path))
            files.append(path.name)
        self._write(files)

    def _write(self, files: list[str] | None = None) -> None:
        """Writes the report whole or not at all, because the process may be killed at any time."""
        self._measure()
        calls = _driver_calls()
        with self._lock:
            report = {
                "rank": _rank(),
                "steps": self._steps,
                "outside_bytes": self._outside,
                "peaks": [[device, kind, peak] for (device, kind), peak in self._peaks.items()],
                "driver_calls": calls,
                "driver_us": _driver_us(calls),
                "driver_us_by": {
                    table: sum(simcuda.cost_by_us(table, name) for name in calls)
                    for table in default_costs()
                },
                "host_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "refused": self._refused,
                "refusals": self._refusals,
                "history": self._history,
                "driver_history": self._driver_history,
                "step_seconds": _median_between(self._stepped_at),
                "error": self._error,
                "files": files or [],
            }
            made = self._folder / f"{self._pid}.part"
            made.write_text(json.dumps(report))
            made.rename(self._folder / f"{self._pid}.json")


def _driver_calls() -> dict[str, int]:
    return {name: count for name in COUNTED if (count := simcuda.calls(name)) > 0}


def _driver_us(calls: dict[str, int]) -> float:
    return sum(simcuda.cost_us(name) for name in calls)


def _median_between(times: list[float]) -> float:
    return statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0


def _cuda_is_used() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def _rank() -> int:
    """The rank in the process group, or the one that the launcher gives."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK") or 0)


def _holders(device: int) -> list[tuple[str, int, int]]:
    """The places that requested a device's live blocks: (file:line in function, bytes, blocks)."""
    import torch

    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for segment in torch.cuda.memory._snapshot()["segments"]:
        if segment["device"] != device:
            continue
        for block in segment["blocks"]:
            if block["state"] != "active_allocated":
                continue
            where = _where(block.get("frames") or [])
            held[where] += block["size"]
            blocks[where] += 1
    return [(where, bytes_, blocks[where]) for where, bytes_ in held.most_common(_HOLDERS)]


def _shown(path: str) -> str:
    """The path from where the job began, because a script may go into another folder, and remove
    it."""
    return os.path.relpath(path, _BEGAN_IN) if _BEGAN_IN and os.path.isabs(path) else path


def _where(frames: list[dict[str, Any]]) -> str:
    """The innermost frame of the user's own code."""
    for frame in frames:
        if "site-packages" in frame["filename"] or not frame["filename"].endswith(".py"):
            continue
        if frame["filename"].startswith(sys.base_prefix):
            continue
        return f"{_shown(frame['filename'])}:{frame['line']} in {frame['name']}"
    return "(no Python frame of the script)"
