"""A rank's tensors in one run of host memory: where each lies, and the copy that brings them there.

From device memory they come through glake's transfer engine, from the host's by a thread; either
way the step goes on meanwhile.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

_ALIGNMENT = 64  # bytes; of every tensor's place


class Layout:
    """Where tensors lie in a run of bytes; of DTensors, this rank's parts."""

    def __init__(self, entries: list[tuple[str, str, list[int]]]) -> None:
        """`entries`: each tensor's (name, dtype, shape), in their order."""
        self.entries = [(name, kind, list(shape)) for name, kind, shape in entries]
        self._places: dict[str, tuple[int, int, Any, list[int]]] = {}
        end = 0
        for name, kind, shape in self.entries:
            dtype = getattr(torch, kind)
            size = math.prod(shape) * dtype.itemsize
            self._places[name] = (end, size, dtype, shape)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.bytes = end

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> Layout:
        """That of these tensors."""
        return cls(entries_of(tensors))

    def parts(self, memory: Any) -> dict[str, Any]:
        """The tensors over a uint8 array of the layout's size; no copy."""
        found = {}
        for name, (first, size, dtype, shape) in self._places.items():
            flat = torch.from_numpy(memory[first : first + size])
            found[name] = flat.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
        return found

    def sharded(self, state: Mapping[str, Any], memory: Any, mesh: Any) -> dict[str, Any]:
        """The state over host memory: a DTensor where `state` has one, on the CPU mesh."""
        found = self.parts(memory)
        for name, tensor in state.items():
            if isinstance(tensor, DTensor):
                found[name] = DTensor.from_local(
                    found[name],
                    mesh,
                    tensor.placements,
                    run_check=False,
                    shape=tensor.shape,
                    stride=tensor.stride(),
                )
        return found

    def bytes_of(self, name: str, memory: Any) -> Any:
        """One tensor's bytes."""
        first, size, *_ = self._places[name]
        return memory[first : first + size]


def entries_of(tensors: Mapping[str, Any]) -> list[tuple[str, str, list[int]]]:
    """(name, dtype, shape) of each tensor's part on this rank."""
    parts = ((name, local(each)) for name, each in tensors.items())
    return [(name, str(part.dtype)[6:], list(part.shape)) for name, part in parts]


def local(tensor: Any) -> Any:
    """This rank's part, as a tensor that keeps its memory whatever becomes of the one given."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def pieces(sharded: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    """A rank's own tensors: name, or name|key of the optimizer's state -> tensor.

    They are the tensors in use, and no rank is asked: what a rank puts into its own memory at a
    step, and takes back from there when it is started again.
    """
    found: dict[str, torch.Tensor] = {}
    for name, parameter in sharded.named_parameters():
        found[name] = local(parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                found[f"{name}|{key}"] = local(value)
    return found


def fits(saved: dict[str, torch.Tensor], sharded: Any) -> bool:
    """Whether these are pieces of this model, shared out in this way."""
    own = {name: local(each) for name, each in sharded.named_parameters()}
    theirs = {name: each for name, each in saved.items() if "|" not in name}
    return own.keys() == theirs.keys() and all(
        own[name].shape == theirs[name].shape and own[name].dtype == theirs[name].dtype
        for name in own
    )


def put_back(saved: dict[str, torch.Tensor], sharded: Any, optimizer: Any) -> None:
    """Puts the values of pieces() in place; the optimizer's state is made where there is none."""
    parameters = dict(sharded.named_parameters())
    optimizer.state.clear()
    with torch.no_grad():
        for name, value in saved.items():
            name, bar, key = name.partition("|")
            parameter = parameters[name]
            if not bar:
                local(parameter).copy_(value)
            else:
                optimizer.state[parameter][key] = _like(value, key, parameter, optimizer)


def _like(value: torch.Tensor, key: str, parameter: Any, optimizer: Any) -> torch.Tensor:
    """A copy of the state's tensor, of the kind and where the optimizer would have made it."""
    if value.dim() == 0:  # torch's step counts are on the device for these alone
        groups = (g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        group: Any = next(groups, {})
        on_device = group.get("fused") or group.get("capturable")
        return value.to(parameter.device, copy=True) if on_device else value.clone()
    return value.to(parameter.device, copy=True)


class HostCopy:
    """A state on its way to host memory. The tensors must not change before finish() is back."""

    def __init__(self, state: Mapping[str, Any], layout: Layout, memory: Any) -> None:
        """Begins what the transfer engine carries; finish() copies what lies in host memory."""
        self._layout, self._memory = layout, memory
        self._host: dict[str, Any] = {}
        device = []
        for name, tensor in state.items():
            part = local(tensor)
            if not in_device_memory(part):
                self._host[name] = part
            elif part.numel():
                device.append((layout.bytes_of(name, memory), part.contiguous()))
        self._transfer = _carried(device) if device else None

    def finish(self) -> None:
        """Returns when all is copied; on any thread."""
        if self._host:
            places = self._layout.parts(self._memory)
            for name, part in self._host.items():
                places[name].copy_(part)
        if self._transfer is not None:
            self._transfer.wait()


def _carried(pairs: list[tuple[Any, Any]]) -> Any:
    """Through the transfer engine, after the work that is queued and beside what comes later."""
    from glake import transfer

    engine = transfer.default_engine()
    if pairs[0][1].device.type != "cuda":  # the emulation has no streams
        return engine.copy_batch(pairs, stream=transfer.UNORDERED)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return engine.copy_batch(pairs, stream=side)


def in_device_memory(tensor: Any) -> bool:
    """Whether its bytes are a GPU's, real or (in the emulation) simulated."""
    if tensor.device.type == "cuda":
        return True
    adapter = sys.modules.get("glake.allocator.torch")
    if adapter is None or adapter.mode() != "emulation":
        return False
    from glake import _C, transfer

    transfer.default_engine()  # it is what knows
    return bool(_C.place_of(tensor.data_ptr())[0] >= 0)


def host_memory(size: int, pinned: bool) -> Any:
    """A uint8 array of host memory, pinned where the transfer engine will fill it."""
    if pinned and size:
        from glake import transfer

        transfer.default_engine()  # whose pool it is
        return transfer.pinned(size)
    return np.empty(size, np.uint8)


def checksum(memory: Any) -> int:
    """The sum of the bytes' 64-bit words: at the speed of memory; finds what was torn or lost."""
    whole = len(memory) // 8 * 8
    words = int(np.add.reduce(memory[:whole].view(np.uint64), dtype=np.uint64))
    return (words + int.from_bytes(memory[whole:].tobytes(), "little")) & (2**64 - 1)
