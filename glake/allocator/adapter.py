"""The CUDA adapter: makes glake torch's CUDA allocator, by a C++ subclass of torch's own interface.

It is compiled at first use against the installed torch (adapter_build.py). Before CUDA is
initialised, it is stored where torch looks for its allocator. Statistics, snapshots, pools, CUDA
graphs and tensors sent between processes work by torch's usual calls. docs/hardware.md says what
was seen on a GPU.
"""

from __future__ import annotations

import ctypes
import functools

import glake
from glake.allocator import adapter_build
from glake.config import Config
from glake.errors import GlakeError


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled adapter, which is not installed yet. Raises AdapterBuildError or GlakeError."""
    path = adapter_build.build(adapter_build.CUDA)
    try:
        adapter = ctypes.CDLL(str(path))
    except OSError as error:
        raise GlakeError(f"cannot load the torch adapter {path}: {error}") from error
    adapter.glake_adapter_install.argtypes = [
        *(ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_double),
        *(ctypes.c_char_p, ctypes.c_size_t),
    ]
    adapter.glake_adapter_refused_frees.restype = ctypes.c_uint64
    adapter.glake_adapter_torch.restype = ctypes.c_char_p
    return adapter


def install(settings: Config, fraction: float | None = None) -> None:
    """Makes glake torch's CUDA allocator for good. With the option `host_allocator` glake becomes
    torch's allocator of pinned memory too. `fraction` of each device's memory is the limit. None:
    the option `limit`.

    Touches no device. Raises AdapterBuildError if there is no compiler, if CUDA's headers are
    missing, or if the adapter does not compile against this torch. Raises GlakeError if CUDA is
    already initialised.
    """
    import torch

    if torch.cuda.is_initialized():
        raise GlakeError(
            "CUDA is already initialised, and PyTorch cannot change its allocator after that: "
            "enable glake before the first CUDA call, or start with GLAKE_ALLOCATOR=1"
        )
    text = ctypes.create_string_buffer(4096)
    where = str(glake.library_path()).encode()
    host, legacy = int(settings.host_allocator), int(settings.private_pools == "legacy")
    limit = -1.0 if fraction is None else fraction
    if library().glake_adapter_install(where, host, legacy, limit, text, len(text)) != 0:
        raise GlakeError(f"cannot install the torch adapter: {text.value.decode()}")


def refused_frees() -> int:
    """How many frees of tensors glake has refused since the start. 0 unless memory was
    corrupted."""
    return int(library().glake_adapter_refused_frees())
