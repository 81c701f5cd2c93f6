"""Keeps shares, gradients, optimizer state and activations in host memory while no work needs them.

If glake is torch's allocator, its transfer engine makes the copies, over every useful path of the
node, and its pool gives the pinned memory. Otherwise torch makes the copies and gives the pinned
memory. Optimizer state is an exception: on a GPU the engine always moves it. If the device is host
memory itself (the CPU without glake), the same calls are made, but no memory is saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from glake import transfer
from glake.allocator import torch as allocator
from glake.trainer.fsdp.collectives import Collectives

if TYPE_CHECKING:
    from glake.trainer.fsdp.flat import Flat

SMALLEST = 1 << 16  # bytes: smaller activations stay on the device


class _ByTorch:
    """A copy by torch. It is enqueued on a CUDA stream, or already done."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.current_stream().record_event() if device.type == "cuda" else None

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class Host:
    """Host memory beside a device, and the copies to and from it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._engine = allocator.mode() is not None

    def empty(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory, uninitialised."""
        if self._engine:
            return transfer.pinned(tuple(shape), dtype)
        return torch.empty(shape, dtype=dtype, pin_memory=self._device.type == "cuda")

    def copy(self, to: torch.Tensor, of: torch.Tensor) -> Any:
        """Starts a copy in the order of the device's current stream. wait() of the returned handle
        returns when the host may read or change its memory."""
        if self._engine and to.numel():
            handle = transfer.copy(to, of)
            if not handle.ordered:  # the emulation: the CPU computes, and no stream orders it
                handle.wait()
            return handle
        to.copy_(of, non_blocking=True)
        return _ByTorch(self._device)

    def keep_optimizer(self, optimizer: Any, bytes_of_parameters: int) -> None:
        """Makes the transfer engine keep the optimizer's state away except while it steps."""
        if self._engine or self._device.type == "cuda":
            # This is an upper bound: an optimizer keeps a few values for each element, of 8 bytes
            # at most.
            transfer.Offloader(64 * bytes_of_parameters).offload_optimizer(optimizer)


class _Away(NamedTuple):
    """A saved tensor, in host memory."""

    values: torch.Tensor


class Activations:
    """Keeps what autograd saves in a block's forward pass in host memory until the backward pass.

    Copies run beside the computation. At the end of the next block the computation waits for the
    copies of this one, and the device's memory becomes free. The wait costs nothing if links are
    fast enough. With the engine the host waits too, so it enqueues at most one block ahead of the
    computation.
    """

    def __init__(self, host: Host, ranks: Collectives) -> None:
        self._host, self._ranks = host, ranks
        # Tensors that are being copied to the host, with their copies. The first list is of this
        # block, and the second one of the block before it.
        self._leaving: list[tuple[torch.Tensor, Any]] = []
        self._left: list[tuple[torch.Tensor, Any]] = []
        self._arriving: Any = None  # the engine's last copy back to the device
        self._mark: Any = None  # the end of the copies to the host of the block before

    @contextmanager
    def saved(self, flats: list[Flat]) -> Iterator[None]:
        """A context for a block's forward pass. Saved tensors that are views of its parameters,
        `flats`, stay on the device."""
        known: dict[Any, tuple[StorageWeakRef, _Away]] = {}
        stay = {flat.full.untyped_storage().data_ptr() for flat in flats}

        def pack(tensor: torch.Tensor) -> Any:
            storage = tensor.untyped_storage()
            if tensor.nbytes < SMALLEST or storage.data_ptr() in stay:
                return tensor
            place = (storage._cdata, tensor._version, tensor.storage_offset())
            key = (*place, tensor.dtype, tensor.shape, tensor.stride())
            if key in known and not known[key][0].expired():  # several layers save the same input
                return known[key][1]
            away = _Away(self._host.empty(tensor.shape, tensor.dtype))
            given = tensor.detach()
            with self._ranks.aside():
                self._leaving.append((given, self._host.copy(away.values, given)))
            known[key] = (StorageWeakRef(storage), away)
            return away

        with torch.autograd.graph.saved_tensors_hooks(pack, self._fetch):
            yield
        self._turn()

    def _turn(self) -> None:
        """Called at the end of a block. Memory of tensors that left in the block before it may be
        freed."""
        self._ranks.join(self._mark)
        for _, handle in self._left:
            # The engine's handles keep tensors alive. For torch's copies the order of the stream is
            # enough.
            if not isinstance(handle, _ByTorch):
                handle.wait()
        self._left, self._leaving = self._leaving, []
        self._mark = self._ranks.mark()

    def _fetch(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        if self._left:  # the backward pass begins: finish the copies of the last blocks too
            self._turn()
            self._turn()
        values = packed.values
        made = torch.empty(values.shape, dtype=values.dtype, device=self._ranks.device)
        handle = self._host.copy(made, values)
        if not isinstance(handle, _ByTorch):  # it keeps memory alive, so only one is under way
            if self._arriving is not None:
                self._arriving.wait()
            self._arriving = handle
        return made
