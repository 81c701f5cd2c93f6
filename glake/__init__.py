"""glake: GPU memory that does not fragment. This module has only the public names.

Importing it does not import torch, loads no native library and touches no device. Each name is
fetched from its module when it is first used.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glake.errors import (
    BusyTimeout,
    CopyCancelled,
    CopyFailed,
    CopyRefused,
    Corrupted,
    DriverAbsent,
    DriverError,
    Forked,
    GlakeError,
    Internal,
    InvalidArgument,
    InvalidDevice,
    InvalidOption,
    InvalidPointer,
    MemoryOwed,
    OutOfMemory,
    Reentered,
    RegionPaused,
    RegionRefused,
    ReplayError,
    TraceError,
    TransferClosed,
    UnknownOption,
)

if TYPE_CHECKING:
    from glake import dryrun as dryrun
    from glake import integrations as integrations
    from glake import metrics as metrics
    from glake import simcuda as simcuda
    from glake import trace as trace
    from glake import trainer as trainer
    from glake import transfer as transfer
    from glake import typing as typing
    from glake.allocator.buffer import Buffer, empty
    from glake.allocator.cache import empty_cache, empty_host_cache
    from glake.allocator.debug import check, findings, tag
    from glake.allocator.deduplication import Deduplicated, deduplicate
    from glake.allocator.emulation import covered_share
    from glake.allocator.headroom import Headroom, headroom
    from glake.allocator.kv_cache import KVCache
    from glake.allocator.regions import Region, pause, region, regions, resume
    from glake.allocator.sharing import (
        close_shared,
        contiguous,
        open_shared,
        pin,
        share,
        unpin,
    )
    from glake.allocator.snapshot import dump_snapshot, record_memory_history, snapshot
    from glake.allocator.stats import record_trace, stats, step
    from glake.allocator.torch import enable
    from glake.allocator.transformers_cache import TransformersCache
    from glake.allocator.virtual import VirtualBuffer, reserve
    from glake.dryrun.run import dry_run

    __version__: str

_HOME = {
    "enable": ("glake.allocator.torch", "enable"),
    "covered_share": ("glake.allocator.emulation", "covered_share"),
    "contiguous": ("glake.allocator.sharing", "contiguous"),
    "pin": ("glake.allocator.sharing", "pin"),
    "Buffer": ("glake.allocator.buffer", "Buffer"),
    "empty": ("glake.allocator.buffer", "empty"),
    "empty_cache": ("glake.allocator.cache", "empty_cache"),
    "empty_host_cache": ("glake.allocator.cache", "empty_host_cache"),
    "KVCache": ("glake.allocator.kv_cache", "KVCache"),
    "TransformersCache": ("glake.allocator.transformers_cache", "TransformersCache"),
    "VirtualBuffer": ("glake.allocator.virtual", "VirtualBuffer"),
    "reserve": ("glake.allocator.virtual", "reserve"),
    "Deduplicated": ("glake.allocator.deduplication", "Deduplicated"),
    "deduplicate": ("glake.allocator.deduplication", "deduplicate"),
    "Headroom": ("glake.allocator.headroom", "Headroom"),
    "headroom": ("glake.allocator.headroom", "headroom"),
    "Region": ("glake.allocator.regions", "Region"),
    "region": ("glake.allocator.regions", "region"),
    "pause": ("glake.allocator.regions", "pause"),
    "resume": ("glake.allocator.regions", "resume"),
    "regions": ("glake.allocator.regions", "regions"),
    "unpin": ("glake.allocator.sharing", "unpin"),
    "stats": ("glake.allocator.stats", "stats"),
    "step": ("glake.allocator.stats", "step"),
    "snapshot": ("glake.allocator.snapshot", "snapshot"),
    "dump_snapshot": ("glake.allocator.snapshot", "dump_snapshot"),
    "record_memory_history": ("glake.allocator.snapshot", "record_memory_history"),
    "check": ("glake.allocator.debug", "check"),
    "findings": ("glake.allocator.debug", "findings"),
    "tag": ("glake.allocator.debug", "tag"),
    "dry_run": ("glake.dryrun.run", "dry_run"),
    "record_trace": ("glake.allocator.stats", "record_trace"),
    "share": ("glake.allocator.sharing", "share"),
    "open_shared": ("glake.allocator.sharing", "open_shared"),
    "close_shared": ("glake.allocator.sharing", "close_shared"),
}

# Imported when they are first used, so that `import glake` is enough for glake.transfer.copy().
_MODULES = (
    "dryrun",
    "integrations",
    "metrics",
    "simcuda",
    "trace",
    "trainer",
    "transfer",
    "typing",
)


def library_path() -> Path:
    """The path of libglake.so, which has the C interface of glake/glake.h."""
    return Path(__file__).resolve().parent / "lib" / "libglake.so"


def include_path() -> Path:
    """The folder to compile C programs with, for `#include <glake/glake.h>`."""
    return Path(__file__).resolve().parent / "include"


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module, attribute = _HOME[name]
        value = getattr(importlib.import_module(module), attribute)
    elif name in _MODULES:
        value = importlib.import_module(f"glake.{name}")
    elif name == "__version__":
        # The version of pyproject.toml is compiled in, because installed metadata may be missing.
        value = importlib.import_module("glake._C").version()
    else:
        raise AttributeError(f"module 'glake' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_MODULES, "__version__"])


__all__ = [
    "Buffer",
    "BusyTimeout",
    "CopyCancelled",
    "CopyFailed",
    "CopyRefused",
    "Corrupted",
    "Deduplicated",
    "DriverAbsent",
    "DriverError",
    "Forked",
    "GlakeError",
    "Headroom",
    "Internal",
    "InvalidArgument",
    "InvalidDevice",
    "InvalidOption",
    "InvalidPointer",
    "KVCache",
    "MemoryOwed",
    "OutOfMemory",
    "Reentered",
    "Region",
    "RegionPaused",
    "RegionRefused",
    "ReplayError",
    "TraceError",
    "TransferClosed",
    "TransformersCache",
    "UnknownOption",
    "VirtualBuffer",
    "__version__",
    "check",
    "close_shared",
    "contiguous",
    "covered_share",
    "deduplicate",
    "dry_run",
    "dump_snapshot",
    "empty",
    "empty_cache",
    "empty_host_cache",
    "enable",
    "findings",
    "headroom",
    "include_path",
    "library_path",
    "open_shared",
    "pause",
    "pin",
    "record_memory_history",
    "record_trace",
    "region",
    "regions",
    "reserve",
    "resume",
    "share",
    "snapshot",
    "stats",
    "step",
    "tag",
    "unpin",
]
