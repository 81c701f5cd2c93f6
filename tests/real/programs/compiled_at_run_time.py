"""Kernels compiled at run time by NVRTC, and by Triton where it is installed.

Memory mode counts them, and numbers mode names them.
"""

import ctypes
import importlib.util
import json
import os
import sys

import torch

SCALED = "template <typename T> T my_scaled(T x, T y, T alpha) { return alpha * x + y; }"
x = torch.ones(1000, device="cuda")


def by_nvrtc() -> torch.Tensor:
    return torch.cuda.jiterator._create_jit_fn(SCALED, alpha=0)(x, x, alpha=3)


def by_triton() -> torch.Tensor:
    os.environ["TRITON_LIBCUDA_PATH"] = os.path.dirname(libcuda())
    import triton
    from triton_kernels import add_kernel

    made = torch.empty_like(x)
    add_kernel[(triton.cdiv(1000, 128),)](x, x, made, 1000, BLOCK=128)
    return made


def libcuda() -> str:
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if "libcuda.so.1" in line)


def launched() -> str:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.simcuda_launches.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(1 << 16)
    driver.simcuda_launches(text, ctypes.c_size_t(len(text)), 0)
    return " ".join(json.loads(text.value))


kernels = {"my_scaled": by_nvrtc}
if importlib.util.find_spec("triton") is not None:
    kernels["add_kernel"] = by_triton
if sys.argv[1:] == ["numbers"]:
    from glake.dryrun import numbers

    numbers.install()
    for name, run in kernels.items():
        try:
            run()
        except RuntimeError as error:
            assert "nobody computes the kernel " in str(error) and name in str(error), error
        else:
            raise AssertionError(f"{name} was given as computed")
else:
    for name, run in kernels.items():
        assert run().shape == (1000,)
        torch.cuda.synchronize()
        assert name in launched(), launched()
    # PyTorch compiles some of its own kernels like this.
    torch.gcd(torch.ones(4, dtype=torch.int32, device="cuda"), 2 + x[:4].int())
    assert "gcd" in launched()
print(*kernels)
