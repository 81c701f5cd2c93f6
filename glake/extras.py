"""Packages that some parts of glake need, and the command that installs a missing one.

torch is in none of the extras that the README's commands need. By itself pip would take PyTorch's
CUDA build, which has several GB, and which `glake plan` cannot use. So the CPU build is installed
first, by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from typing import Any

from glake.errors import PackageMissing

TORCH_CPU = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""PyTorch's own line for its CPU build."""
TORCH = f"with a GPU its CUDA build: pip install torch; without one the CPU build: {TORCH_CPU}"
"""Which PyTorch to install for a part of glake that works with either build."""


def present(module: str) -> bool:
    """Whether `module` could be imported. Does not import it."""
    return importlib.util.find_spec(module) is not None


def missing(need: str, package: str, extra: str, error: ImportError | None = None) -> str:
    """A sentence about what needs `package`, and the extra of glake that brings it.

    `error` is the exception of its import, if that was tried. A package may be installed, but
    broken.
    """
    broken = error is not None and not isinstance(error, ModuleNotFoundError)
    state = f"cannot be imported ({error})" if broken else "is not installed"
    return f'{need} needs {package}, which {state}: pip install "glake[{extra}]"'


def needed(module: str, need: str, package: str, extra: str) -> Any:
    """Imports the module and returns it. Raises PackageMissing, with the text of missing(), if that
    fails."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PackageMissing(missing(need, package, extra, error)) from error


def missing_torch(need: str) -> str:
    """The sentence for a Python without torch, where a job should be recorded."""
    return f"{need} needs PyTorch's CPU build, which is not installed: {TORCH_CPU}"


def cuda_torch(version: str) -> str:
    """The sentence for a Python with a CUDA build of torch, where a job should be recorded."""
    pip = TORCH_CPU.removeprefix("pip ")
    return (
        f"torch {version} is a CUDA build, which registers its own device: a job is recorded with "
        f"PyTorch's CPU build, in an environment of its own: {shlex.quote(sys.executable)} -m venv "
        f"cpu-torch && cpu-torch/bin/pip {pip}; then give --python cpu-torch/bin/python. "
        "With the torch that is here, `glake dry-run` runs a CUDA script on simulated GPUs"
    )
