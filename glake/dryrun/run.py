"""Runs a job under each allocator on simulated GPUs, and gathers what its processes report."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import IO, Any

from glake.allocator import adapter_build
from glake.dryrun import libraries
from glake.dryrun.child import VARIABLE
from glake.dryrun.gpus import Machine, machine, outside_bytes
from glake.dryrun.result import DryRun, Refusal
from glake.errors import AdapterBuildError, DryRunError
from glake.trace.units import size

ALLOCATORS = ("native", "expandable", "glake", "compact")
DEFAULT_ALLOCATORS = ("native", "expandable", "glake")
WHEEL = "pip install --no-deps torch==2.14.1"
PRECISION = 0.002  # of the smallest capacity that a search finds
_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_SHOWN = 20  # last lines of a quiet job that fails
_GRACE = 5.0  # seconds between asking a job's processes to end and killing them
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A command line, the machine it runs on and where its words go (None: to ours)."""

    command: tuple[str, ...]
    machine: Machine
    outside: str | int | None = None
    numbers: bool = (
        False  # ops compute, in real memory; else kernels are counted, in phantom memory
    )
    known: bool = True  # without numbers: small values from the host are followed through the ops
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    output: IO[Any] | int | None = None
    quiet: bool = False  # its words are shown only if it fails
    keep: Path | None = None  # folder for snapshots; None: none are made
    timeout_s: float | None = None


def dry_run(
    script: str | os.PathLike[str],
    *args: str,
    gpus: str | int = 1,
    memory: str | int | None = None,
    allocators: Sequence[str] = DEFAULT_ALLOCATORS,
    outside: str | int | None = None,
    numbers: bool = False,
    capacity_search: bool = False,
    precision: float = PRECISION,
    keep: str | os.PathLike[str] | None = None,
    as_module: bool = False,
    output: IO[Any] | int | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> list[DryRun]:
    """Runs a CUDA script on simulated GPUs, once an allocator, and says what it needed.

    Args:
        script: path of a Python script, or a launcher such as "torchrun"; args are its own.
        gpus: count, model or both: 4, "A100", "8xH100".
        memory: bytes of each GPU, or "62.6GiB"; default: the model's.
        allocators: of native, expandable, glake, compact. The first two are PyTorch's own code.
        outside: bytes of each GPU that CUDA itself takes; default: an estimate (gpus.py); 0: none.
        numbers: compute every aten op by PyTorch's CPU kernels, in real memory of this machine;
            else kernels are counted, and values read back are zero, but for small ones that come
            from the host.
        capacity_search: also find the smallest memory with which each allocator runs the job.
        precision: of the smallest memory, as a share of it.
        keep: folder for PyTorch's memory snapshots, one a rank and allocator.
        as_module: `script` is a module's name, as with python -m.
        output: where the script's stdout goes (as of subprocess.Popen); default: to ours.
        timeout_s: seconds after which a run is ended, with a DryRunError.
        progress: told in words what begins.

    Raises:
        DryRunError: this Python's torch is no CUDA build, the script fails for another reason than
            memory, a figure is out of range, or capacity_search is asked for with numbers.
        AdapterBuildError: the adapter that numbers need could not be compiled. Without numbers that
            is told by `progress`, and small values from the host are not followed.
    """
    from glake.dryrun.search import smallest_capacity

    names = _checked(allocators)
    if numbers and capacity_search:
        raise DryRunError(
            "capacity_search runs the job in phantom memory, which has no bytes to compute numbers "
            "with: ask for one of the two"
        )
    require_cuda_build()
    job = Job(
        command=command_of(str(script), args, as_module),
        machine=machine(str(gpus), memory),
        outside=outside,
        numbers=numbers,
        output=output,
        keep=None if keep is None else Path(keep),
        timeout_s=timeout_s,
    )
    taken = outside_bytes(outside, 1)
    if taken >= job.machine.memory_bytes:
        raise DryRunError(
            f"CUDA itself would take {size(taken)} of each GPU, which has "
            f"{size(job.machine.memory_bytes)}: a larger memory=, or a smaller outside="
        )
    if job.keep is not None:
        try:
            job.keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DryRunError(f"no folder {job.keep} for what is kept: {error.strerror}") from None
    tell = progress or (lambda text: None)
    job = replace(job, known=_adapter_is_built(numbers, tell))
    found = []
    for name in names:
        tell(f"{name}: running the job")
        made = run_once(job, name)
        if capacity_search:
            made = smallest_capacity(job, made, tell, precision)
        found.append(made)
    return found


def _adapter_is_built(numbers: bool, tell: Progress) -> bool:
    """Compiles what computes ops, here and not in every rank at once; memory mode does without."""
    try:
        adapter_build.build(adapter_build.NUMBERS)
        return True
    except AdapterBuildError as error:
        if numbers:
            raise
        tell(f"values that the script sends through a GPU will return as zero: {error}")
        return False


def _checked(allocators: Sequence[str]) -> list[str]:
    for name in allocators:
        if name not in ALLOCATORS:
            raise DryRunError(f"no allocator {name!r}; there are {', '.join(ALLOCATORS)}")
    if not allocators:
        raise DryRunError(f"no allocator given; there are {', '.join(ALLOCATORS)}")
    return list(dict.fromkeys(allocators))


def require_cuda_build() -> None:
    """DryRunError unless this Python's torch is a CUDA build, without importing it."""
    found = util.find_spec("torch")
    if found is None or found.origin is None:
        raise DryRunError(f"torch is not installed here; its CUDA build is needed: {WHEEL}")
    version = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    if version.get("cuda") is None:
        raise DryRunError(
            f"torch {version.get('__version__')} here is a build without CUDA; install a CUDA "
            f"build in an environment of its own (no GPU and no NVIDIA packages needed): {WHEEL}"
        )


def command_of(script: str, args: Sequence[str], as_module: bool = False) -> tuple[str, ...]:
    """The command line that runs the job by this Python. DryRunError for no such script."""
    python = sys.executable  # started as the user would: what lies beside the script is the job's
    if script == "-m" and args:  # after a --
        script, *args = args
        as_module = True
    if as_module:
        return (python, "-m", script, *args)
    if script.endswith(".py") or (Path(script).is_file() and not os.access(script, os.X_OK)):
        if not Path(script).is_file():
            raise DryRunError(f"no such script: {script}")
        return (python, script, *args)
    if script == "torchrun":  # this Python's
        return (python, "-m", "torch.distributed.run", *args)
    named = Path(script).name == script  # by its name alone: this environment's, before others
    beside = Path(sys.executable).with_name(Path(script).name)
    found = str(beside) if named and beside.is_file() else shutil.which(script)
    if found is None:
        if script.startswith("-"):
            raise DryRunError(f"no such option: {script} (glake dry-run --help lists them)")
        raise DryRunError(f"no such script or launcher: {script} (a module is run with -m)")
    return (found, *args)


def run_once(job: Job, allocator: str) -> DryRun:
    """One run of the job. DryRunError where it fails for another reason than memory."""
    name = f"glake-dry-{uuid.uuid4().hex[:12]}"
    folder = Path(tempfile.mkdtemp(prefix="glake-dry-run-"))
    request = {
        "folder": str(folder),
        "snapshot": job.keep is not None,
        "numbers": job.numbers,
        "known": job.known,
        "outside": None if job.outside is None else str(job.outside),
    }
    environment = _environment(job, allocator, name) | {VARIABLE: json.dumps(request)}
    started = time.monotonic()
    try:
        with (folder / "words").open("w+b") as words:
            code = _run(job, environment, words if job.quiet else None)
        reports = [json.loads(each.read_text()) for each in sorted(folder.glob("*.json"))]
        seconds = time.monotonic() - started
        _check_end(job, allocator, code, reports, folder / "words")
        made = _gathered(job, allocator, code, reports, seconds)
        return _with_files(job, made, folder, reports)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(job: Job, allocator: str, name: str) -> dict[str, str]:
    made = {key: text for key, text in job.environment.items() if not key.startswith("GLAKE_SIM_")}
    for key in ("GLAKE_ALLOCATOR", "GLAKE_STRICT", "GLAKE_DRIVER", "GLAKE_POLICY"):
        made.pop(key, None)
    conf = next((key for key in _CONF if key in made), _CONF[0])
    pairs = [pair for pair in made.get(conf, "").split(",") if pair]
    if allocator in ("native", "expandable"):
        pairs = [pair for pair in pairs if not pair.startswith("expandable_segments")]
    if allocator == "expandable":
        pairs.append("expandable_segments:True")
    if allocator in ("glake", "compact"):
        policy = "compact" if allocator == "compact" else "balanced"
        made |= {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
        made["GLAKE_POLICY"] = policy
    made.pop(conf, None)
    if pairs:
        made[conf] = ",".join(pairs)
    made |= {
        "GLAKE_SIM_PRESET": job.machine.platform,
        "GLAKE_SIM_DEVICES": str(job.machine.gpus),
        "GLAKE_SIM_MEMORY": str(job.machine.memory_bytes),
        "GLAKE_SIM_PHANTOM": "0" if job.numbers else "1",
        "GLAKE_SIM_MACHINE": name,
    }
    return libraries.environment(made)


def _run(job: Job, environment: Mapping[str, str], words: IO[bytes] | None) -> int:
    """The job's exit code; its processes are gone afterwards, whatever ends us."""
    # A session of its own, so that one signal reaches every process the job starts.
    with subprocess.Popen(
        job.command,
        env=environment,
        stdout=job.output if words is None else words,
        stderr=words,
        start_new_session=True,
    ) as child:
        try:
            return child.wait(job.timeout_s)
        except subprocess.TimeoutExpired:
            raise DryRunError(f"the job was still running after {job.timeout_s:g} s") from None
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
    job: Job, allocator: str, code: int, reports: list[dict[str, Any]], words: Path
) -> None:
    """DryRunError for a job that failed for another reason than memory, or used no GPU."""
    command = " ".join(job.command[:3])
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
    job: Job, allocator: str, code: int, reports: list[dict[str, Any]], seconds: float
) -> DryRun:
    by_memory = code != 0  # else _check_end has refused it
    peaks: dict[str, int] = {"allocated_bytes": 0, "reserved_bytes": 0}
    for report in reports:
        for _, kind, peak in report["peaks"]:
            peaks[kind] = max(peaks[kind], peak)
    most = max(reports, key=lambda each: sum(each["driver_calls"].values()))
    fullest = max(reports, key=lambda each: max((peak for *_, peak in each["peaks"]), default=0))
    return DryRun(
        allocator=allocator,
        capacity_bytes=job.machine.memory_bytes,
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
        step_seconds=round(max(each["step_seconds"] for each in reports), 3),
        refusals=sum(each["refused"] for each in reports),
        history=tuple((held, live) for held, live in fullest["history"]),
        driver_history=tuple((calls, round(us, 1)) for calls, us in most["driver_history"]),
    )


def _ended_by_memory(report: dict[str, Any]) -> bool:
    """Whether a process whose job failed ended by a request that found no memory."""
    error = str(report["error"])
    if error:
        return "out of memory" in error.lower()
    return bool(report["refused"])


def _refusal(reports: list[dict[str, Any]]) -> Refusal:
    ended = [each for each in reports if _ended_by_memory(each)]
    report = min(ended, key=lambda each: each["steps"])
    last = report["refusals"][-1] if report["refusals"] else {}
    return Refusal(
        rank=report["rank"],
        device=last.get("device", 0),
        requested_bytes=last.get("requested_bytes", 0),
        step=last.get("step", report["steps"]),
        message=str(report["error"]),
        holders=tuple((where, held, count) for where, held, count in last.get("holders", [])),
    )


def _with_files(job: Job, made: DryRun, folder: Path, reports: list[dict[str, Any]]) -> DryRun:
    from dataclasses import replace

    if job.keep is None:
        return made
    kept = []
    for name in (name for report in reports for name in report["files"]):
        target = job.keep / f"{made.allocator}-{name}"
        shutil.move(folder / name, target)
        kept.append(str(target))
    return replace(made, files=tuple(sorted(kept)))
