"""Puts CuPy's arrays and its pinned memory into glake's memory, in one pool with PyTorch's.

CuPy's own pools keep the memory that they once took. glake's idle memory serves the next request of
either package.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import threading
from collections.abc import Callable
from typing import Any

from glake import _C
from glake.allocator.buffer import Block, is_permanent
from glake.errors import Forked, InvalidArgument, InvalidDevice, OutOfMemory
from glake.integrations import figures
from glake.integrations.cupy_captures import Captures

PACKAGE = "cupy"
VERSIONS = ("14", "15")


def version() -> str:
    """The version of the package. Its distributions have several names (cupy-cuda12x, cupy-cuda13x
    and others)."""
    return str(_cupy().__version__)


def allocate(nbytes: int) -> Any:
    """For CuPy's set_allocator(): a `cupy.cuda.MemoryPointer` on CuPy's current device and stream.

    The block goes back, in order of that stream, when no array holds it any more. An array that
    another stream uses must outlive that use, as with CuPy's own pool. Also as there, memory that
    only reference cycles hold is collected before a request is refused.

    Args:
        nbytes: a number of bytes, also a NumPy number or a float, as CuPy's own allocators take.

    Raises:
        OutOfMemory: there is no room, or no block is so large. The exception is a
            `cupy.cuda.memory.OutOfMemoryError` too.
        InvalidArgument: the size is negative.
        DriverError: the driver refused a call.
    """
    cuda = _cupy().cuda
    device, stream = _where()
    nbytes = _size(nbytes)
    if nbytes == 0:
        return cuda.MemoryPointer(cuda.UnownedMemory(0, 0, None, device), 0)
    try:
        block = _block(nbytes, device, stream)
    except (OutOfMemory, InvalidArgument) as error:  # the size is the only argument to refuse
        raise _out_of_memory(str(error)) from None
    if device not in _connected:
        _connect(device)
    figures.add("cupy", "requested_bytes", nbytes)
    return cuda.MemoryPointer(cuda.UnownedMemory(block.ptr, nbytes, block, device), 0)


def allocate_pinned(nbytes: int) -> Any:
    """For CuPy's set_pinned_memory_allocator(): a `cupy.cuda.PinnedMemoryPointer`.

    Args:
        nbytes: a number of bytes, as for allocate().

    Raises:
        InvalidArgument: the size is negative.
        OutOfMemory: there is no pinned host memory for it, or no block is so large. The exception
            is a `cupy.cuda.runtime.CUDARuntimeError` too, with the `status` of
            `cudaErrorMemoryAllocation`: CuPy then copies from memory that is not pinned.
    """
    return _cupy().cuda.PinnedMemoryPointer(_Pinned(_size(nbytes)), 0)


def install() -> None:
    """Makes glake CuPy's allocator, also of pinned memory. Existing arrays stay where they are.

    Raises:
        InvalidArgument: called inside `cupy.cuda.using_allocator`.
    """
    cuda = _cupy().cuda
    if _before:
        return
    before = _global_allocator()
    _captures.watch(_replaced, cuda.Stream)
    cuda.set_allocator(allocate)
    cuda.set_pinned_memory_allocator(allocate_pinned)
    _before.append(before)


def uninstall() -> None:
    """Restores the former allocator and CuPy's pool of pinned memory. Arrays stay where they are.

    An allocator that somebody has set since install() stays.

    Raises:
        InvalidArgument: called inside `cupy.cuda.using_allocator`.
    """
    if _before:
        cuda, now = _cupy().cuda, _global_allocator()
        before = _before.pop()
        if now is allocate:
            cuda.set_allocator(before)
        cuda.set_pinned_memory_allocator(_cupy().get_default_pinned_memory_pool().malloc)
        _replaced.close()


class _Pinned:
    """A block of pinned memory, as CuPy's pointers hold one."""

    def __init__(self, nbytes: int) -> None:
        self.size = nbytes
        self.ptr = 0
        try:
            self.ptr = _C.host_malloc(max(nbytes, 1))
        except (OutOfMemory, InvalidArgument) as error:  # the size is the only argument to refuse
            raise _out_of_pinned_memory(str(error)) from None
        figures.add("cupy", "pinned_bytes", nbytes)

    def __del__(self) -> None:
        if self.ptr:
            with contextlib.suppress(Forked):  # a child of os.fork() has no part in the memory
                _C.host_free(self.ptr)


_MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation, for which CuPy has no public name
_before: list[Any] = []
_replaced = contextlib.ExitStack()
_captures = Captures()
_connected: set[int] = set()  # the devices on which CuPy has memory
_connecting = threading.RLock()  # a finalizer that allocates may run inside


@functools.cache
def _cupy() -> Any:
    return importlib.import_module(PACKAGE)


def _block(nbytes: int, device: int, stream: Any) -> Block:
    # A stream that CuPy was given says whose it is.
    ends = stream.ptr != 0 and not is_permanent(getattr(stream, "_foreign_stream_ref", None))
    if ends:
        _captures.allocating(device, stream)
    with contextlib.suppress(OutOfMemory):
        return Block(nbytes, device, stream.ptr, ends)
    gc.collect()  # outside of the `with` block, whose error has frames that hold arrays
    return Block(nbytes, device, stream.ptr, ends)


def _size(nbytes: Any) -> int:
    whole = int(nbytes)
    if whole < 0:
        raise InvalidArgument(f"a size of {nbytes} bytes: pass 0 or more")
    return whole


def _global_allocator() -> Any:
    """CuPy's allocator of all threads, which CuPy hides inside `using_allocator`."""
    cuda = _cupy().cuda
    now = cuda.get_allocator()
    try:
        cuda.set_allocator(now)
    except ValueError as error:
        raise InvalidArgument(
            f"CuPy's allocator cannot be replaced here ({error}): call this outside of the `with` "
            "block of cupy.cuda.using_allocator"
        ) from None
    return now


def _where() -> tuple[int, Any]:
    """CuPy's current device and stream."""
    cuda = _cupy().cuda
    return cuda.runtime.getDevice(), cuda.get_current_stream()


def _connect(device: int) -> None:
    """Lets this device and the others with CuPy's memory access each other's, if the driver can.

    CuPy relies on cudaDeviceEnablePeerAccess for this, which does not cover glake's memory
    (docs/interop.md, D7).
    """
    with _connecting:
        for peer in _connected - {device}:
            for memory_of, reader in ((device, peer), (peer, device)):
                with contextlib.suppress(InvalidDevice):  # no access between these two
                    _C.enable_peer_access(memory_of, reader)
        _connected.add(device)


@functools.cache
def _error_classes() -> tuple[type[OutOfMemory], type[OutOfMemory]]:
    """glake's exception and CuPy's in one, with glake's text: for device memory and for pinned
    memory. CuPy's alone have sizes or a status instead of a text, also when they are unpickled."""
    cuda = _cupy().cuda

    def both(theirs: type[Exception], remade: Callable[[str], OutOfMemory]) -> type[OutOfMemory]:
        methods = {
            "__init__": MemoryError.__init__,
            "__str__": MemoryError.__str__,
            "__reduce__": lambda self: (remade, self.args, self.__dict__),
        }
        return type("OutOfMemory", (OutOfMemory, theirs), methods)

    pinned = both(cuda.runtime.CUDARuntimeError, _out_of_pinned_memory)
    pinned.status = _MEMORY_ALLOCATION
    return both(cuda.memory.OutOfMemoryError, _out_of_memory), pinned


def _out_of_memory(text: str) -> OutOfMemory:
    return _error_classes()[0](text)


def _out_of_pinned_memory(text: str) -> OutOfMemory:
    return _error_classes()[1](text)
