"""Pinned host memory, which is the fastest to copy. It is allocated, or an array's memory is pinned
in place.

Pageable memory can be copied too, through pinned buffers of the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

from glake import _C, arguments
from glake.errors import GlakeError, InvalidArgument
from glake.transfer import registration
from glake.transfer.array_memory import ArrayMemory, memory_of
from glake.transfer.engine import default_engine, open_engine
from glake.transfer.registration import Registration

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from glake.typing import Array


@overload
def pinned(shape: int | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor: ...


@overload
def pinned(shape: int | tuple[int, ...], dtype: npt.DTypeLike = "uint8") -> np.ndarray: ...


def pinned(
    shape: int | tuple[int, ...], dtype: npt.DTypeLike | torch.dtype = "uint8"
) -> np.ndarray | torch.Tensor:
    """Makes an array of pinned host memory, uninitialised, from glake's host pool.

    The memory returns to the pool when no array or view of it is left. Copies of it must be done by
    then. A copy by glake.transfer keeps the memory alive until it is done.

    Args:
        shape: a whole number, or several.
        dtype: of NumPy, for a NumPy array; of torch (torch.float32), for a torch tensor.

    Raises:
        InvalidArgument: no such shape or dtype.
        OutOfMemory: there is no host memory for it.
        DriverError: the driver refused a call.
    """
    given = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    extents = tuple(extent for extent in map(arguments.whole, given) if extent is not None)
    if len(extents) != len(given) or min(extents, default=0) < 0:
        raise InvalidArgument(f"shape {shape!r}: whole numbers from 0 on")
    count = math.prod(extents)
    asked: Any = dtype  # NumPy's or torch's
    if type(asked).__module__ == "torch":
        import torch

        if not isinstance(asked, torch.dtype):
            raise InvalidArgument(
                f"dtype is one of torch's or NumPy's, not {arguments.type_name(asked)}"
            )
        if count == 0:
            return torch.empty(extents, dtype=asked)
        memory, _ = pinned_block(count * asked.itemsize)
        return torch.frombuffer(memory, dtype=asked, count=count).view(extents)
    import numpy as np

    try:
        kind = np.dtype(asked)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"dtype {dtype!r}: one of NumPy's, its name, or one of torch's ({error})"
        ) from None
    if kind.hasobject:
        raise InvalidArgument("an array of Python objects cannot be pinned")
    if count * kind.itemsize == 0:
        return np.empty(extents, kind)
    memory, _ = pinned_block(count * kind.itemsize)
    return np.frombuffer(memory, dtype=kind, count=count).reshape(extents)


def pinned_block(size: int, freed: Callable[[int], object] | None = None) -> tuple[Any, int]:
    """(a ctypes array over a block of the pool, its address). When the array is collected, `freed`
    is called with the address, and the block goes back to the pool."""
    shared = open_engine()
    if shared is not None and shared.shares_host_memory:
        return _shared_block(size, freed)
    address = _C.host_malloc(size)
    memory = (ctypes.c_char * size).from_address(address)
    # At exit the memory is not freed, because arrays may be in use until the process ends.
    weakref.finalize(memory, _give_back, address, freed).atexit = False
    return memory, address


def _shared_block(size: int, freed: Callable[[int], object] | None) -> tuple[Any, int]:
    address = _C.shared_alloc(size)
    memory = (ctypes.c_char * size).from_address(address)

    def give_back() -> None:
        if freed is not None:
            freed(address)
        with contextlib.suppress(GlakeError):  # the engine has ended, and has freed the memory
            _C.shared_free(address)

    weakref.finalize(memory, give_back).atexit = False
    return memory, address


def _give_back(address: int, freed: Callable[[int], object] | None) -> None:
    if freed is not None:
        freed(address)
    with contextlib.suppress(GlakeError):  # in a forked child, or after the driver's end
        _C.host_free(address)


def register_host(array: Array, background: bool = False) -> Registration:
    """Pins an array's memory in place, in pieces.

    Pinning takes about 0.1 s for each GB. Meanwhile the array can be copied like pageable memory.
    The array stays pinned, and alive, until unregister() or the engine's end.

    Args:
        array: a contiguous CPU tensor or array, a buffer object, or `Raw`.
        background: return at once, and pin on a thread.

    Raises:
        InvalidArgument: the array has gaps or no bytes, is registered already, or is read-only.
            (The driver pins memory for writing too.)
        InvalidPointer: memory that is not there.
        DriverError: the driver refuses.
    """
    arguments.flag("background", background)
    memory = array if isinstance(array, ArrayMemory) else memory_of(array, use="pin")
    if not memory.contiguous or memory.bytes == 0:
        raise InvalidArgument(
            f"{memory} is not C-contiguous (it has gaps, or another order) or has no bytes: pin "
            "the whole array it is a part or a view of"
        )
    if memory.read_only and memory.kind != "tensor":  # a tensor's is only a rule of autograd
        raise InvalidArgument(
            f"{memory} cannot be pinned: {memory.read_only}, and the driver pins what may be "
            "written to; pin a writable array of the same memory, or copy it to one of pinned()"
        )
    if memory.device >= 0:
        raise InvalidArgument(
            f"{memory} is memory of cuda:{memory.device}: only host memory can be pinned"
        )
    default_engine()
    registration.end_failed(memory.address)
    device, known = _C.place_of(memory.address)
    if device >= 0 or known:
        where = f"memory of cuda:{device}" if device >= 0 else "pinned already"
        raise InvalidArgument(f"{memory} is {where}: there is nothing to pin")
    return Registration(memory, background)
