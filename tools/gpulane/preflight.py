"""Checks whether there is a GPU, and whether everything is installed. This module imports only the
standard library, because anything else may be missing."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

# The name of each module, and the package that pip installs for it.
MODULES = {
    "torch": "torch (a CUDA build)",
    "click": "click",
    "rich": "rich",
    "numpy": "numpy",
    "pybind11": "pybind11",
    "setuptools": "setuptools",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
}


def no_gpu(library: str = "libcuda.so.1", who: str = "make gpu") -> str | None:
    """Why `who` can use no GPU, in one sentence; None if there is a usable one."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        return f"{who} needs an NVIDIA GPU and its driver, and there is none here ({error})."
    count = ctypes.c_int()
    code = driver.cuInit(0)
    if code == 0:
        code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code != 0 or count.value == 0:
        return (
            f"{who} needs an NVIDIA GPU: {library} is here but shows none "
            f"(CUresult {code}, {count.value} devices)."
        )
    return None


def missing(need_cuda: bool = True) -> list[str]:
    """The packages that are not installed, each with the way to get it; empty if there are none."""
    lacks = [pip for name, pip in MODULES.items() if importlib.util.find_spec(name) is None]
    found = [f"the Python package {pip}" for pip in lacks]
    beside = str(Path(sys.executable).parent)
    if not (shutil.which("cmake", path=beside) or shutil.which("cmake")):
        found.append("cmake (or its Python package)")
    compiler = (os.environ.get("CXX") or "g++").split()[0]
    if shutil.which(compiler) is None:
        found.append(f'a C++ compiler ("{compiler}" is not on PATH)')
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        found.append(f"Python's headers ({sysconfig.get_path('include')}/Python.h)")
    if "torch" in sys.modules or importlib.util.find_spec("torch") is not None:
        import torch

        if need_cuda and torch.version.cuda is None:
            found.append(f"a CUDA build of torch (this one is {torch.__version__})")
    return found
