"""Runs a job with each allocator on simulated GPUs, and gathers the reports of its processes."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import IO

from glake import arguments
from glake.allocator import adapter_build
from glake.dryrun.gpus import machine, outside_bytes
from glake.dryrun.launch import Launch, run_once
from glake.dryrun.result import DryRun
from glake.dryrun.search import PRECISION, smallest_capacity
from glake.dryrun.stdin import RepeatedInput
from glake.errors import AdapterBuildError, DryRunError
from glake.units import size

ALLOCATORS = ("native", "expandable", "glake", "compact")
DEFAULT_ALLOCATORS = ("native", "expandable", "glake")
WHEEL = "pip install --no-deps torch==2.14.1"
Progress = Callable[[str], None]


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
    output: IO[str] | IO[bytes] | int | None = None,
    stdin: RepeatedInput | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> list[DryRun]:
    """Runs a CUDA script on simulated GPUs once with each allocator, and says what it needed.

    Args:
        script: path of a Python script, or a launcher such as "torchrun".
        args: the script's arguments.
        gpus: their number, model or both: 4, "A100", "8xH100".
        memory: bytes of each GPU, or a text such as "62.6GiB"; default: the model's memory.
        allocators: some of native, expandable, glake and compact. The first two are PyTorch's own
            code.
        outside: bytes of each GPU that CUDA itself takes; default: an estimate (gpus.py); 0: none.
        numbers: compute every aten op by PyTorch's CPU kernels, in real memory of this machine.
            Otherwise kernels are only counted. Values that are read back are then zero, except
            small ones that come from the host.
        capacity_search: also find the smallest memory with which each allocator runs the job.
        precision: the precision of the smallest memory, as a share of it.
        keep: the folder for PyTorch's memory snapshots, one for each rank and allocator.
        as_module: `script` is the name of a module, as with python -m.
        output: where the script's stdout goes (as for subprocess.Popen); default: this process's
            stdout.
        stdin: what each run reads as its stdin (glake.dryrun.stdin); default: all runs share this
            process's, and the later ones find what the first one has left of it.
        timeout_s: seconds after which a run is ended, with a DryRunError.
        progress: called with a text when something begins.

    Raises:
        DryRunError: this Python's torch is no CUDA build, the script fails for another reason than
            memory, a figure is out of range, or capacity_search is asked for with numbers.
        WrongType: `allocators` is no list of names.
        AdapterBuildError: the adapter that `numbers` needs could not be compiled. Without `numbers`
            that is only reported by `progress`, and ops on small values are not computed.
    """
    names = _checked(allocators)
    if numbers and capacity_search:
        raise DryRunError(
            "capacity_search runs the job in phantom memory, which has no bytes to compute numbers "
            "with: ask for one of the two"
        )
    require_cuda_build()
    launch = Launch(
        command=command_of(str(script), args, as_module),
        machine=machine(str(gpus), memory),
        outside=outside,
        numbers=numbers,
        output=output,
        stdin=stdin,
        keep=None if keep is None else Path(keep),
        timeout_s=timeout_s,
    )
    taken = outside_bytes(outside, 1)
    if taken >= launch.machine.memory_bytes:
        raise DryRunError(
            f"CUDA itself would take {size(taken)} of each GPU, which has "
            f"{size(launch.machine.memory_bytes)}: a larger memory=, or a smaller outside="
        )
    if launch.keep is not None:
        try:
            launch.keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DryRunError(
                f"no folder {launch.keep} for what is kept: {error.strerror}"
            ) from None
    tell = progress or (lambda text: None)
    launch = replace(launch, known=_adapter_is_built(numbers, tell))
    found = []
    for name in names:
        tell(f"{name}: running the job")
        made = run_once(launch, name)
        if capacity_search:
            made = smallest_capacity(launch, made, tell, precision)
        found.append(made)
    return found


def _adapter_is_built(numbers: bool, tell: Progress) -> bool:
    """Compiles the adapter that computes ops here, so that not every rank does it at once. In
    memory mode a failure is only reported."""
    try:
        adapter_build.build(adapter_build.NUMBERS)
        return True
    except AdapterBuildError as error:
        if numbers:
            raise
        tell(f"values that the script sends through a GPU will return as zero: {error}")
        return False


def _checked(allocators: Sequence[str]) -> list[str]:
    arguments.text_list("allocators", allocators)
    for name in allocators:
        if name not in ALLOCATORS:
            raise DryRunError(f"no allocator {name!r}; there are {', '.join(ALLOCATORS)}")
    if not allocators:
        raise DryRunError(f"no allocator given; there are {', '.join(ALLOCATORS)}")
    return list(dict.fromkeys(allocators))


def require_cuda_build() -> None:
    """Raises DryRunError unless this Python's torch is a CUDA build. Does not import it."""
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
    """The command line that runs the job with this Python. Raises DryRunError if there is no such
    script."""
    # It is started as a user would start it, so the script finds the files beside it.
    python = sys.executable
    if script == "-m" and args:  # the option -m came after a "--"
        script, *args = args
        as_module = True
    if as_module:
        return (python, "-m", script, *args)
    if script.endswith(".py") or (Path(script).is_file() and not os.access(script, os.X_OK)):
        if not Path(script).is_file():
            raise DryRunError(f"no such script: {script}")
        return (python, script, *args)
    if script == "torchrun":  # the torchrun of this Python
        return (python, "-m", "torch.distributed.run", *args)
    named = Path(script).name == script  # this environment's program of that name comes first
    beside = Path(sys.executable).with_name(Path(script).name)
    found = str(beside) if named and beside.is_file() else shutil.which(script)
    if found is None:
        if script.startswith("-"):
            raise DryRunError(f"no such option: {script} (glake dry-run --help lists them)")
        raise DryRunError(f"no such script or launcher: {script} (a module is run with -m)")
    return (found, *args)
