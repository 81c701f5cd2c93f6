"""The driver by ctypes, and the kernels of tests/conformance/kernels.ptx. It needs no compiler."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

PTX = Path(__file__).resolve().parents[2] / "conformance" / "kernels.ptx"


class Refused(RuntimeError):
    """A driver call failed. The text has its name and CUresult."""


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    """Makes one driver call. Refused if it fails."""
    code = getattr(driver(), name)(*arguments)
    if code != 0:
        raise Refused(f"{name} returned {code}")


@functools.cache
def function(name: str) -> ctypes.c_void_p:
    torch.cuda.synchronize()  # makes a context current
    module, found = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX.read_bytes()))
    call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
    return found


def stamp_bytes(address: int, first: int, step: int, count: int, value: int) -> None:
    """Runs a kernel on the current stream: byte address + first + i * step = value, i < count."""
    values = [ctypes.c_uint64(each) for each in (address, first, step, count)]
    values.append(ctypes.c_uint32(value))  # type: ignore[arg-type]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    one = ctypes.c_uint(1)
    call("cuLaunchKernel", function("stamp_bytes"), one, one, one, ctypes.c_uint(32), one, one,
         ctypes.c_uint(0), stream, pointers, None)  # fmt: skip
