"""A rank's state in one stretch of host memory: the place of each tensor, and the copy.

glake's transfer engine copies tensors that are in device memory, and a thread copies those in host
memory. The step goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from glake import _C, transfer
from glake.allocator import torch as allocator
from glake.trainer.fsdp.state import Part

_ALIGNMENT = 64  # bytes: every tensor's place begins at a multiple


class Layout:
    """The places of 1-D tensors in a stretch of bytes."""

    def __init__(self, entries: list[tuple[str, str, int]]) -> None:
        """`entries` are the (name, dtype, elements) of the tensors, in order."""
        self.entries = [(name, kind, size) for name, kind, size in entries]
        self._places: dict[str, tuple[int, int, torch.dtype]] = {}
        self.bytes = 0
        for name, kind, size in self.entries:
            dtype = getattr(torch, kind)
            self._places[name] = (self.bytes, self.bytes + size * dtype.itemsize, dtype)
            self.bytes += -(-size * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> Layout:
        """The layout of a state's parts."""
        return cls([(name, str(part.dtype)[6:], part.size) for name, part in parts.items()])

    def tensors(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors as views of uint8 memory, which has the layout's size. Copies nothing."""
        places = self._places.items()
        return {name: memory[first:end].view(dtype) for name, (first, end, dtype) in places}


class HostCopy:
    """A state that is being copied to host memory. The tensors must not change before finish()
    returns."""

    def __init__(self, parts: Mapping[str, Part], layout: Layout, memory: torch.Tensor) -> None:
        """Begins the copies that the transfer engine makes. finish() copies what is in host
        memory."""
        places = layout.tensors(memory)
        copies = [copy for name, part in parts.items() for copy in part.put_into(places[name])]
        device = [copy for copy in copies if in_device_memory(copy[1])]
        self._host = [copy for copy in copies if not in_device_memory(copy[1])]
        self._transfer = _carried(device) if device else None

    def finish(self) -> None:
        """Returns when everything is copied. Any thread may call it."""
        for to, piece in self._host:
            to.copy_(piece)
        if self._transfer is not None:
            self._transfer.wait()


def _carried(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Copies by the transfer engine. The copies follow the work that is queued, and run beside
    later work."""
    engine = transfer.default_engine()
    if pairs[0][1].device.type != "cuda":  # the emulation has no streams
        return engine.copy_batch(pairs, stream=transfer.UNORDERED)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return engine.copy_batch(pairs, stream=side)


def in_device_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes are in GPU memory. In the emulation this memory is simulated."""
    if tensor.device.type == "cuda":
        return True
    if allocator.mode() != "emulation":
        return False
    transfer.default_engine()  # it knows where memory is
    return bool(_C.place_of(tensor.data_ptr())[0] >= 0)


def host_memory(layout: Layout, parts: Mapping[str, Part]) -> torch.Tensor:
    """Memory for such a state. It is pinned if the transfer engine fills it."""
    if any(in_device_memory(piece) for part in parts.values() for _, piece in part.pieces):
        transfer.default_engine()  # the memory is of its pool
        return transfer.pinned((layout.bytes,), torch.uint8)
    return torch.empty(layout.bytes, dtype=torch.uint8)


def checksum(memory: torch.Tensor) -> int:
    """The sum of the bytes' 64-bit words. It runs at the speed of memory, and finds torn or lost
    bytes."""
    return int(memory.view(torch.int64).sum())
