"""The `basic` mode: glake as torch's pluggable CUDA allocator, through its C interface.

It works with every CUDA build of PyTorch. That interface has no memory statistics and snapshots of
torch.cuda, no CUDA graphs and no MemPools, so this mode has none either. Not seen on hardware yet.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import glake
from glake.allocator import adapter_build
from glake.errors import GlakeError

# torch's setter -> our function. Each setter takes the address of a function.
SETTERS = {
    "set_reset_fn": "glake_plugin_reset",
    "set_memory_fraction_fn": "glake_plugin_memory_fraction",
    "set_base_alloc_fn": "glake_plugin_base_alloc",
    "set_record_stream_fn": "glake_plugin_record_stream",
    "set_begin_allocate_to_pool": "glake_plugin_begin_pool",
    "set_end_allocate_to_pool_fn": "glake_plugin_end_pool",
    "set_release_pool": "glake_plugin_release_pool",
}


@functools.cache
def plugin() -> ctypes.CDLL:
    """The compiled plug-in, connected to libglake.so. Raises AdapterBuildError, GlakeError."""
    adapter = ctypes.CDLL(str(adapter_build.build("plugin")))
    adapter.glake_plugin_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(1024)
    if adapter.glake_plugin_open(str(glake.library_path()).encode(), text, len(text)) != 0:
        raise GlakeError(f"cannot open the plug-in: {text.value.decode()}")
    return adapter


def install() -> None:
    """Makes glake torch's CUDA allocator. Raises GlakeError if CUDA is already initialised."""
    import torch

    if torch.cuda.is_initialized():
        raise GlakeError(
            "CUDA is already initialised, and PyTorch cannot change its allocator after that: "
            "enable glake before the first CUDA call, or start with GLAKE_ALLOCATOR=1"
        )
    adapter = plugin()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        adapter._name, "glake_plugin_alloc", "glake_plugin_free"
    )
    connect(allocator.allocator(), adapter)
    torch.cuda.memory.change_current_allocator(allocator)


def connect(allocator: Any, adapter: ctypes.CDLL) -> None:
    """Gives torch's allocator object the functions beyond allocation and free."""
    for setter, function in SETTERS.items():
        address = ctypes.cast(getattr(adapter, function), ctypes.c_void_p).value
        getattr(allocator, setter)(address)
