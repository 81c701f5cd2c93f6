"""Memory that others must see whole or in place: NCCL, network cards, other processes.

docs/interop.md says what works with which kind of memory. Pointers are ints, as
`tensor.data_ptr()` gives; that of a whole block, not of its inside. Every function raises the
errors of glake.errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glake.arguments import address, device_number
from glake.errors import InvalidArgument

if TYPE_CHECKING:
    import torch

_KINDS = {"stitched": 0, "vmm": 1, "legacy": 2}


@contextmanager
def contiguous(kind: str = "vmm") -> Iterator[None]:
    """Blocks the calling thread allocates inside are one driver allocation each.

    kind: "vmm" (NCCL buffer registration, GPUDirect RDMA, export as one descriptor), "legacy"
    (cudaMalloc memory: cudaIpcGetMemHandle too) or "stitched", glake's usual memory. Bytes are
    rounded up to 2 MiB; freed blocks are kept for later ones of about their size. InvalidArgument
    for another kind.
    """
    from glake import _C

    if kind not in _KINDS:
        raise InvalidArgument(f"no memory is of kind {kind!r}; it is one of {', '.join(_KINDS)}")
    before = _C.set_kind(_KINDS[kind])
    try:
        yield
    finally:
        _C.set_kind(before)


class Pin:
    """One pin of a block, which glake.pin() made; a context manager, which ends it."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        unpin(self.ptr)


def pin(ptr: int) -> Pin:
    """Keeps the memory under the live block at `ptr` where it is, past its free, from now on.

    It can be used again in place, but is not stitched, unmapped or given back. Pins nest. It lasts
    until `unpin(ptr)`, or to the end of `with glake.pin(ptr):`.

    Args:
        ptr: the block's address, as `tensor.data_ptr()` gives it.

    Raises:
        InvalidPointer: no live block starts there.
    """
    from glake import _C

    _C.pin(address(ptr))
    return Pin(ptr)


def unpin(ptr: int) -> None:
    """Ends one pin of `ptr`, whose block may be gone. InvalidPointer if it has none."""
    from glake import _C

    _C.unpin(address(ptr))


def share(ptr: int) -> str:
    """The text by which other processes of this user open the live block at `ptr`.

    It is good until the block is freed. What is enqueued on the block's stream is not waited for:
    synchronise before the other process reads. InvalidPointer, InvalidArgument (memory that the
    driver cannot export), DriverError.
    """
    from glake import _C

    return _C.ipc_share(address(ptr))


def open_shared(handle: str, device: int | str | torch.device = 0) -> tuple[int, int]:
    """(address, bytes) of another process's block, mapped here on the same GPU.

    The same handle again gives the same address, counted: close it as often. InvalidArgument for a
    text that is no handle or this process's own, InvalidPointer if the block or its process is
    gone, InvalidDevice if it is on another GPU, DriverError.
    """
    from glake import _C

    return _C.ipc_open(handle, device_number(device))


def close_shared(ptr: int) -> None:
    """Closes what `open_shared` gave, after the device's work. InvalidPointer; DriverError: it
    stays open; MemoryOwed: it is closed, and what the driver refused to take back is tried again at
    the next `open_shared` and at the end."""
    from glake import _C

    _C.ipc_close(ptr)
