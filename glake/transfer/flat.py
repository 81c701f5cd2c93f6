"""Helpers for contiguous memory that glake's own threads move in pieces."""

from __future__ import annotations

from typing import Any

from glake import _C
from glake.errors import GlakeError, InvalidArgument, InvalidPointer
from glake.transfer.array_memory import HOST, ArrayMemory
from glake.transfer.engine import default_engine


def require(memory: ArrayMemory) -> None:
    """Raises InvalidArgument for memory with gaps."""
    if not memory.contiguous:
        raise InvalidArgument(f"{memory} has gaps: pass contiguous memory, or copy it first")


def gpu_of(memory: ArrayMemory) -> int:
    """The GPU that has the memory, or HOST.

    Raises:
        RegionPaused: it is of a paused region.
        InvalidPointer: raw GPU memory is longer than its block. This is checked here, because
            pieces are checked one by one, and a piece in the next block would pass.
    """
    if memory.bytes == 0:
        return HOST
    if memory.device < 0 and memory.kind == "memoryview":  # host memory, which needs no driver
        return HOST
    default_engine()  # it knows whose memory it is: in the emulation a GPU's may be a CPU tensor
    found = int(_C.place_of(memory.address)[0])
    gpu = memory.device if memory.device >= 0 else found
    if gpu != HOST and memory.owner is None:
        _require_block(memory)
    return gpu


def stream_of(memory: ArrayMemory, gpu: int) -> Any:
    """(GPU, handle) of the caller's current stream. None: it has none.

    It must be asked on the caller's thread, because a thread that copies has another current
    stream.
    """
    if gpu == HOST or memory.stream is None:
        return None
    return (gpu, memory.stream)


def _require_block(memory: ArrayMemory) -> None:
    try:
        held = _C.block_info(memory.address)[0]
    except GlakeError:  # inside a block, or not glake's: the engine checks each piece
        return
    if memory.bytes > held:
        raise InvalidPointer(
            f"{memory} of {memory.bytes} bytes begins a block of {held}: name no more than it has"
        )
