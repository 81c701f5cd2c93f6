"""Host memory for what need not be on the device: shares, gradients, optimizer state, activations.

Where glake is torch's allocator its transfer engine copies, over every useful path of the node, and
its pool gives pinned memory; elsewhere torch's own copies and pinned memory do, but for optimizer
state, which is the engine's on every GPU. On a device that is host memory itself (the CPU without
glake) the same calls are made, and move nothing off anything.
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

SMALLEST = 1 << 16  # bytes of an activation that is worth the way


class _ByTorch:
    """A copy by torch, on a CUDA stream or already done."""

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
        """Starts a copy in the order of the device's current stream. The handle's wait() returns
        when the host may read or change its side."""
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
            # It is a bound and not a size: a few values are kept for each element, of 8 bytes at
            # most.
            transfer.Offloader(64 * bytes_of_parameters).offload_optimizer(optimizer)


class _Away(NamedTuple):
    """A saved tensor, in host memory."""

    values: torch.Tensor


class Activations:
    """Keeps what autograd saves in a block's forward pass in host memory until the backward pass.

    Copies go beside the computation. The device's memory is free one block later, when they are
    done: the computation then waits for them, which costs nothing where links keep up. With the
    engine the host waits too, and so enqueues no more than a block before it is computed.
    """

    def __init__(self, host: Host, ranks: Collectives) -> None:
        self._host, self._ranks = host, ranks
        # Tensors that are being copied to the host, with their copies: those since this block
        # began, and those since the one before it began.
        self._leaving: list[tuple[torch.Tensor, Any]] = []
        self._left: list[tuple[torch.Tensor, Any]] = []
        self._arriving: Any = None  # the engine's last copy back to the device
        self._mark: Any = None  # of the end of what left in the block before

    @contextmanager
    def saved(self, flats: list[Flat]) -> Iterator[None]:
        """Used around a block's forward pass. What it saves of its parameters, `flats`, stays."""
        known: dict[Any, tuple[StorageWeakRef, _Away]] = {}
        stay = {flat.full.untyped_storage().data_ptr() for flat in flats}

        def pack(tensor: torch.Tensor) -> Any:
            storage = tensor.untyped_storage()
            if tensor.nbytes < SMALLEST or storage.data_ptr() in stay:
                return tensor
            place = (storage._cdata, tensor._version, tensor.storage_offset())
            key = (*place, tensor.dtype, tensor.shape, tensor.stride())
            if key in known and not known[key][0].expired():  # several layers of one input
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
        """A block is over. What left in the one before it may be freed."""
        self._ranks.join(self._mark)
        for _, handle in self._left:
            # The engine's handles keep tensors alive. For torch's copies stream order is enough.
            if not isinstance(handle, _ByTorch):
                handle.wait()
        self._left, self._leaving = self._leaving, []
        self._mark = self._ranks.mark()

    def _fetch(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        if self._left:  # the backward pass begins: the last blocks leave as well
            self._turn()
            self._turn()
        values = packed.values
        made = torch.empty(values.shape, dtype=values.dtype, device=self._ranks.device)
        handle = self._host.copy(made, values)
        if not isinstance(handle, _ByTorch):  # the engine's keeps what it wrote to: one at a time
            if self._arriving is not None:
                self._arriving.wait()
            self._arriving = handle
        return made
