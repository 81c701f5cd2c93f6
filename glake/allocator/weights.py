"""Weights that can move into shards and out again: the storages of torch tensors, and buffers."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from glake import _C
from glake.allocator.buffer import Buffer, capturing, is_block
from glake.arguments import type_name
from glake.errors import InvalidArgument, InvalidPointer, OutOfMemory, WrongType

Fill = Callable[[int], None]  # writes the bytes to this address


class Weight:
    """Bytes of one GPU that move as a whole.

    `layout` says what the bytes mean: weights are equal if their bytes and their layouts are.
    `stream` orders the work on their memory.
    """

    stream = 0

    def __init__(self, name: str, device: int, address: int, nbytes: int, layout: str) -> None:
        self.name, self.device, self.layout = name, device, layout
        self.address, self.nbytes = address, nbytes

    def place(self, ptr: int, home: object) -> int:
        """Moves to the equal bytes at `ptr`, which `home` keeps there. Returns how many bytes this
        process has got back for that. It may be 0, where others hold the former memory."""
        former = self.address
        self._move(ptr, home)
        self.address = ptr
        return 0 if is_block(former) else self.nbytes

    def make_private(self, fill: Fill) -> None:
        """Moves to memory of its own, which `fill` fills first. Does nothing if the weight is
        gone."""
        self._move_back(fill)

    def _move(self, ptr: int, home: object) -> None:
        raise NotImplementedError

    def _move_back(self, fill: Fill) -> None:
        raise NotImplementedError


class BufferWeight(Weight):
    """A glake.Buffer."""

    def __init__(self, name: str, buffer: Buffer) -> None:
        """InvalidArgument if arrays have its address."""
        if exported := buffer._exported():
            raise InvalidArgument(
                f"{name!r} is held by {exported} arrays made of it through DLPack, which "
                "would keep its address: let go of them first"
            )
        super().__init__(name, buffer.device, buffer.ptr, buffer.nbytes, "uint8")
        self.stream = buffer.stream
        self._buffer = weakref.ref(buffer)

    def _move(self, ptr: int, home: object) -> None:
        buffer = self._buffer()
        if buffer is not None:
            buffer._move(ptr, home)

    def _move_back(self, fill: Fill) -> None:
        buffer = self._buffer()
        if buffer is not None and buffer.read_only:
            buffer._move_back(fill)


class TensorWeight(Weight):
    """A storage of torch, with all given tensors that are views of it."""

    def __init__(self, name: str, storage: Any) -> None:
        """Takes a glake.transfer.storages.Storage."""
        layout = ";".join(
            f"{each.dtype} {tuple(each.shape)} {each.stride()} {each.storage_offset()}"
            for each in storage.tensors
        )
        index = storage.device.index
        super().__init__(name, index, storage.address, storage.bytes, layout)
        self._tensors = [weakref.ref(each) for each in storage.tensors]

    def _live(self) -> list[Any]:
        """The tensors that still lie at our address. Others got other data meanwhile."""
        found = [each for each in (reference() for reference in self._tensors) if each is not None]
        return [each for each in found if each.untyped_storage().data_ptr() == self.address]

    def _rebase(self, flat: Any) -> None:
        from glake.transfer.storages import Storage

        tensors = self._live()
        if tensors:
            storage = Storage(tensors[0])
            storage.tensors = tensors
            storage.rebase(flat)

    def _move(self, ptr: int, home: object) -> None:
        import torch

        capsule = _C.dlpack(home, ptr, self.nbytes, self.device, False)
        self._rebase(torch.utils.dlpack.from_dlpack(capsule))

    def _move_back(self, fill: Fill) -> None:
        import torch

        if not self._live():
            return
        try:
            flat = torch.empty(self.nbytes, dtype=torch.uint8, device=f"cuda:{self.device}")
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(str(error)) from None
        torch.cuda.current_stream(self.device).synchronize()  # the block's former work
        fill(flat.data_ptr())
        self._rebase(flat)


def found(things: Any, already: Callable[[int], bool]) -> list[Weight]:
    """The weights of a module or a mapping, in the order of their names.

    Those at an address for which `already` is true are left out. Raises WrongType for anything
    else, and InvalidArgument for what cannot be shared.
    """
    buffers: list[tuple[str, Buffer]] = []
    tensors: list[tuple[str, Any]] = []
    for name, thing in sorted(_named(things), key=lambda each: each[0]):
        if isinstance(thing, Buffer):
            buffers.append((name, thing))
        else:
            tensors.append((name, thing))
    unique = {id(buffer): (name, buffer) for name, buffer in reversed(buffers)}
    given: list[Weight] = [
        BufferWeight(name, buffer)
        for name, buffer in sorted(unique.values(), key=lambda each: each[0])
        if not buffer.read_only
    ]
    require_no_capture({weight.device for weight in given})
    given += _of_tensors(tensors, already)
    for weight in given:
        _require_own(weight)
    return sorted(given, key=lambda weight: weight.name)


def require_no_capture(devices: Collection[int]) -> None:
    """Raises InvalidArgument while a stream is being captured, because weights cannot move then:
    the waits for their work would break the capture."""
    if any(map(capturing, devices)):
        raise InvalidArgument(
            "weights cannot be shared or made private while a stream is being captured: do it "
            "before or after the capture"
        )


def _named(things: Any) -> Iterator[tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(things, torch.nn.Module):
        yield from things.named_parameters(remove_duplicate=False)
        return
    if not isinstance(things, Mapping):
        raise WrongType(
            "weights are a torch.nn.Module, or a mapping of names to CUDA tensors or "
            f"glake.Buffers, not {type_name(things)}"
        )
    for name, thing in things.items():
        if not isinstance(name, str):
            raise WrongType(f"a weight's name is a string, not {type_name(name)}")
        tensor = torch is not None and isinstance(thing, torch.Tensor)
        if not tensor and not isinstance(thing, Buffer):
            raise WrongType(f"{name!r} is a CUDA tensor or a glake.Buffer, not {type_name(thing)}")
        yield name, thing


def _of_tensors(named: list[tuple[str, Any]], already: Callable[[int], bool]) -> list[Weight]:
    if not named:
        return []
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    from glake.transfer.storages import storages_of

    names: dict[int, str] = {}
    for name, tensor in named:
        if is_traceable_wrapper_subclass(tensor):
            raise InvalidArgument(
                f"{name!r} is {type_name(tensor)}, whose memory others hold too: pass its inner "
                "tensors, such as to_local()"
            )
        if tensor.device.type != "cuda":
            raise InvalidArgument(
                f"{name!r} is on {tensor.device}, and only memory of a GPU is shared: move it "
                "there first"
            )
        if tensor.requires_grad:
            raise InvalidArgument(
                f"{name!r} requires a gradient, and what is shared cannot be trained: call "
                "requires_grad_(False), or pass a mapping of the frozen weights alone"
            )
        if tensor.layout is not torch.strided:
            raise InvalidArgument(
                f"{name!r} has the layout {tensor.layout}: pass its strided parts, such as values()"
            )
        names.setdefault(tensor.untyped_storage()._cdata, name)
    storages = storages_of([tensor for _, tensor in named])
    devices = {one.device.index for one in storages}
    require_no_capture(devices)
    for device in devices:
        torch.cuda.synchronize(device)  # work that writes the weights
    return [
        TensorWeight(names[one.tensors[0].untyped_storage()._cdata], one)
        for one in storages
        if one.bytes and not already(one.address)
    ]


def _require_own(weight: Weight) -> None:
    try:
        _C.block_info(weight.address)
    except InvalidPointer:
        raise InvalidArgument(
            f"{weight.name!r} at {weight.address:#x} is in no block of glake's, so that its memory "
            "could not be given back: allocate it under glake (GLAKE_ALLOCATOR=1, glake.enable())"
        ) from None
