"""Prints which files the libraries' functions are from, as PyTorch loads installed wheels too."""

import ctypes

import torch


class Found(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("file", "base", "symbol", "address")]


torch.ones(3, device="cuda")
program = ctypes.CDLL(None)
found = Found()
for name in ("cudaMalloc", "cudaLaunchKernel", "cublasCreate_v2", "cudnnCreate", "ncclGetVersion"):
    function = ctypes.cast(getattr(program, name), ctypes.c_void_p)
    assert program.dladdr(function, ctypes.byref(found)) != 0
    print(ctypes.string_at(found.file).decode())
launches = ctypes.create_string_buffer(1 << 16)
program.simcuda_launches(launches, len(launches), 0)
assert len(launches.value) > 2, "no kernel was launched through the stand-in"
