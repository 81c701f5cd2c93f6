"""Memory that NCCL, network cards or other processes must see contiguous, or in one place.

docs/interop.md says what works with which kind of memory. A pointer is the int that
`tensor.data_ptr()` gives. It must be the start of a block. Every function raises the errors of
glake.errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from glake.allocator.contexts import ThreadSetting, reusable
from glake.arguments import address, device_number, text, word
from glake.errors import InvalidPointer

if TYPE_CHECKING:
    from glake.typing import Device

_T = TypeVar("_T")
_KINDS = {"stitched": 0, "vmm": 1, "legacy": 2}


def _put_kind(kind: int) -> int:
    from glake import _C

    return _C.set_kind(kind)


def _of_block(call: Callable[[int], _T], ptr: int) -> _T:
    """The result of a call of the core for the block at `ptr`. An error says what is there else."""
    from glake.allocator import deduplication

    try:
        return call(address(ptr))
    except InvalidPointer as error:
        if not deduplication.is_shared(ptr):
            raise
        raise InvalidPointer(
            f"{ptr:#x} is a weight in a shard that glake.deduplicate() has made, and no block: "
            "other processes find it by glake.deduplicate(), and nothing moves it. The result's "
            "close() gives the weight a block of its own again"
        ) from error


_kinds = ThreadSetting("kind of memory", _put_kind)


@reusable()
def contiguous(kind: str = "vmm") -> Iterator[None]:
    """A context in which each block that the calling thread allocates is one driver allocation.

    Sizes are rounded up to 2 MiB. Freed blocks are kept for later blocks of about their size.
    Tasks (asyncio) of one thread share its kind of memory: do not await inside.

    Args:
        kind: "vmm" (for NCCL buffer registration, GPUDirect RDMA, export as one descriptor),
            "legacy" (cudaMalloc memory, which cudaIpcGetMemHandle takes too) or "stitched" (glake's
            usual memory).

    Raises:
        InvalidArgument: there is no such kind. Also raised at the end, on a thread that did not
            open it, or if a context that was opened later is still open.
        WrongType: the decorated function is a generator or async.
    """
    with _kinds.during(kind, _KINDS[word("the kind of memory", kind, _KINDS)]):
        yield


class Pin:
    """One pin of a block that glake.pin() made. As a context manager it ends the pin."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        unpin(self.ptr)


def pin(ptr: int) -> Pin:
    """Keeps the memory of the live block at `ptr` in place, even past the block's free.

    Pinned memory can be used again in place, but it is not stitched, unmapped or given back. Pins
    nest. A pin lasts until `unpin(ptr)`, or to the end of `with glake.pin(ptr):`.

    Args:
        ptr: the block's address, as `tensor.data_ptr()` gives it.

    Raises:
        InvalidPointer: no live block starts there.
        WrongType: `ptr` is not an address.
    """
    from glake import _C

    _of_block(_C.pin, ptr)
    return Pin(ptr)


def unpin(ptr: int) -> None:
    """Ends one pin of the block at `ptr`, which may have been freed meanwhile.

    Args:
        ptr: the block's address.

    Raises:
        InvalidPointer: the block has no pin.
        WrongType: `ptr` is not an address.
    """
    from glake import _C

    _C.unpin(address(ptr))


def share(ptr: int) -> str:
    """Returns the text by which other processes of this user open the live block at `ptr`.

    The text is good until the block is freed. Work that is enqueued on the block's stream is not
    waited for: synchronise before the other process reads.

    Args:
        ptr: the block's address, as `tensor.data_ptr()` gives it.

    Raises:
        InvalidPointer: no live block starts there.
        InvalidArgument: the driver cannot export this memory.
        WrongType: `ptr` is not an address.
        DriverError: the driver refused a call.
    """
    from glake import _C

    return _of_block(_C.ipc_share, ptr)


def open_shared(handle: str, device: Device = 0) -> tuple[int, int]:
    """Maps another process's block here, on the same GPU.

    The same text gives the same address each time. Close the block as often as it was opened.

    Args:
        handle: the text that share() returned in the other process.
        device: 0, "cuda:0" or a torch.device: the GPU that the block is on.

    Returns:
        The address, and the block's size in bytes.

    Raises:
        InvalidArgument: the text is not a handle, or is this process's own.
        InvalidPointer: the block or its process is gone.
        InvalidDevice: the block is on another GPU.
        WrongType: `handle` is not a string.
        DriverError: the driver refused a call.
    """
    from glake import _C

    return _C.ipc_open(text("a shared block's handle", handle), device_number(device))


def close_shared(ptr: int) -> None:
    """Closes a block that open_shared() opened, once the device's work is done.

    Args:
        ptr: the address that open_shared() returned.

    Raises:
        InvalidPointer: nothing is open there.
        WrongType: `ptr` is not an address.
        DriverError: the driver refused. The block stays open.
        MemoryOwed: the block is closed, but the driver refused to take something back. That is
            tried again at the next open_shared() and at the end.
    """
    from glake import _C

    _C.ipc_close(address(ptr))
