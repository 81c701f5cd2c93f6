"""Finds the addresses of what can be copied: torch tensors, NumPy and CuPy arrays, DLPack, raw
pointers."""

import ctypes
import math
import sys
from dataclasses import dataclass, field
from typing import Any

from glake import arguments
from glake.errors import InvalidArgument, InvalidDevice
from glake.transfer import dlpack, interfaces
from glake.typing import Device

# Values in place of a GPU's number. HOST is host memory; ASK means that the driver is asked.
HOST, ASK = -1, -2

# CPU memory may be pinned, pageable or the simulator's. The driver knows which.
_DLPACK_PLACES = {dlpack.CPU: ASK, dlpack.CUDA_HOST: HOST, dlpack.CUDA_MANAGED: ASK}
_BYTES = ("", "uint8", "int8")  # dtypes that stand for memory of any kind


@dataclass(frozen=True, slots=True)
class Raw:
    """`bytes` bytes at `address`. Nothing keeps them alive, so the caller must keep them until the
    copy is done.

    Args:
        address: the address of the first byte.
        bytes: the number of bytes.
        device: the GPU (0, "cuda:0" or a torch.device); HOST: host memory; ASK: the driver is
            asked.
    """

    address: int
    bytes: int
    device: Device = ASK


# The class is not frozen, because that would triple the time to make an object, and slow down small
# copies.
@dataclass(slots=True)
class ArrayMemory:
    """The memory of an array. An ArrayMemory is never changed.

    `strides` are in bytes. `owner` keeps the memory alive. `stream` is the current stream of the
    array's framework on that GPU; None: there is none. `read_only` says why the memory may not be
    written; empty: it may be written.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    device: int
    owner: Any
    dtype: str = ""
    stream: int | None = None
    read_only: str = ""
    kind: str = "raw memory"  # how errors name it
    # The results of `bytes` and `contiguous`. None: not known yet.
    _bytes: int | None = field(default=None, init=False, compare=False)
    _dense: bool | None = field(default=None, init=False, compare=False)

    @property
    def bytes(self) -> int:
        """The size of all items in bytes."""
        if self._bytes is None:
            self._bytes = self.item * math.prod(self.shape)
        return self._bytes

    @property
    def contiguous(self) -> bool:
        """Whether the items are in C order without gaps."""
        if self._dense is None:
            self._dense = self._is_dense()
        return self._dense

    def _is_dense(self) -> bool:
        dense = self.item
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if stride != dense and extent != 1:
                return 0 in self.shape
            dense *= extent
        return True

    @property
    def typed(self) -> bool:
        """Whether the items have a type other than bytes."""
        return self.dtype not in _BYTES

    def __str__(self) -> str:
        if self.owner is None:
            return f"raw memory at {self.address:#x}"
        return f"{self.kind} {self.dtype}{list(self.shape)}"


_USES = {
    "copy": "a torch tensor, a NumPy or CuPy array, anything with __dlpack__, or "
    "Raw(address, bytes, device)",
    "pin": "a CPU tensor, a NumPy array, a buffer object such as a bytearray, or "
    "Raw(address, bytes)",
}


def memory_of(thing: Any, write: bool = False, use: str = "copy") -> ArrayMemory:
    """The memory of a tensor, an array, any DLPack or buffer object, or a `Raw`.

    Raises InvalidArgument for anything else; `use` says what is taken. With `write` it also raises
    InvalidArgument for memory that may not be written.
    """
    if isinstance(thing, Raw):
        found = raw_memory("Raw", thing.address, thing.bytes, thing.device)
    elif isinstance(thing, ArrayMemory):
        found = thing
    else:
        found = _framework(thing, use)
    if write and found.read_only:
        raise InvalidArgument(f"{found} cannot be the destination of a copy: {found.read_only}")
    return found


def is_tensor(thing: Any) -> bool:
    """Whether it is a tensor of torch. torch is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and (type(thing) is torch.Tensor or isinstance(thing, torch.Tensor))


def _framework(thing: Any, use: str) -> ArrayMemory:
    if is_tensor(thing):
        return _tensor(sys.modules["torch"], thing)
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(thing) is numpy.ndarray:
        quick = _numpy_array(thing)
        if quick is not None:
            return quick
    for interface, on_gpu in (("__cuda_array_interface__", True), ("__array_interface__", False)):
        facts = getattr(thing, interface, None)
        if facts is not None:
            return _interface(thing, interface, facts, on_gpu)
    if hasattr(thing, "__dlpack__"):
        return _dlpack(thing)
    try:
        view = memoryview(thing)
    except TypeError:
        raise InvalidArgument(
            f"{type(thing).__name__} has no memory to {use}: pass {_USES[use]}"
        ) from None
    return _memory(view, thing)


def raw_memory(kind: str, address: Any, bytes: Any, device: Any) -> ArrayMemory:
    """Memory without an owner. `kind` is what errors call it. Raises InvalidArgument."""
    first, size = arguments.whole(address), arguments.whole(bytes)
    if first is None or not 1 <= first < 1 << 63:
        raise InvalidArgument(f"{kind}: address {address!r} is not a number from 1 to 2^63")
    if size is None or not 0 <= size < 1 << 63:
        raise InvalidArgument(f"{kind}: bytes {bytes!r} is not a number from 0 to 2^63")
    found = ArrayMemory(first, (size,), (1,), 1, _place(kind, device), None)
    found._bytes, found._dense = size, True
    return found


def _place(kind: str, device: Any) -> int:
    if type(device) is int and device >= ASK:  # the fast way, for small copies
        return device
    try:
        number = arguments.whole(device)
        return number if number in (HOST, ASK) else arguments.device_number(device)
    except InvalidDevice:
        raise InvalidArgument(
            f'{kind}: device {device!r} is neither a GPU (0, "cuda:0", torch.device("cuda:0")), '
            "HOST (-1) nor ASK (-2)"
        ) from None


def _tensor(torch: Any, tensor: Any) -> ArrayMemory:
    on_gpu = tensor.is_cuda
    if tensor.layout is not torch.strided or not (on_gpu or tensor.is_cpu):
        raise InvalidArgument(
            f"a {tensor.layout} tensor on {tensor.device}: only strided memory on cpu and "
            "cuda can be copied; of a sparse tensor, copy its indices and values"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(
            "the tensor's conjugation or sign is still to be applied: call resolve_conj() or "
            "resolve_neg() first"
        )
    try:
        address, shape = tensor.data_ptr(), tensor.shape
    except RuntimeError as error:  # for fake tensors, and for subclasses that hold other tensors
        if tensor.is_nested:
            raise InvalidArgument("a nested tensor has no shape: copy its values()") from None
        raise InvalidArgument(
            f"{type(tensor).__name__} has no memory of its own: {error}"
        ) from None
    item, dtype = tensor.element_size(), tensor.dtype
    leaf = tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled()
    found = ArrayMemory(
        address,
        shape,  # a tuple
        tensor.stride() if item == 1 else tuple([stride * item for stride in tensor.stride()]),
        item,
        tensor.get_device() if on_gpu else ASK,
        tensor,
        interfaces.name_of(dtype) or interfaces.named(dtype, str(dtype).removeprefix("torch.")),
        _current_stream(torch, tensor.get_device()) if on_gpu else None,
        "it is a leaf that requires grad; use torch.no_grad()" if leaf else "",
        "tensor",
    )
    found._dense = tensor.is_contiguous()
    return found


def _current_stream(torch: Any, gpu: int) -> int:
    # torch's own compiler uses this call, because it makes no object.
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(quick(gpu) if quick else torch.cuda.current_stream(gpu).cuda_stream)


def _numpy_array(array: Any) -> ArrayMemory | None:
    # Finds the memory of NumPy's own arrays quickly, because small copies spend their time on this.
    # None: the array is handled like others.
    dtype = interfaces.name_of(array.dtype)
    core = sys.modules.get("glake._C")  # it may not be imported yet
    if core is None or dtype is None or array.dtype.hasobject:
        return None
    facts = core.array_memory(array)
    if facts is None:
        return None
    address, shape, strides, item, dense, read_only, size = facts
    why = "it is read-only" if read_only else ""
    found = ArrayMemory(address, shape, strides, item, ASK, array, dtype, None, why, "ndarray")
    found._bytes, found._dense = size, dense
    return found


def _interface(thing: Any, name: str, facts: Any, on_gpu: bool) -> ArrayMemory:
    # This check takes as long as all the others. So arrays of libraries, which have a dtype, are
    # checked only where something is unusual.
    if not hasattr(thing, "dtype"):
        interfaces.check(thing, name, facts)
    try:
        found = _array(thing, facts, on_gpu)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if not isinstance(error, InvalidArgument):
            interfaces.check(thing, name, facts)
        raise
    known = type(found.address) is int and (found.stream is None or type(found.stream) is int)
    if not (known and found._dense and 0 <= found.address < 1 << 63):
        interfaces.check(thing, name, facts)
        found.stream = arguments.whole(found.stream)
    return found


def _array(thing: Any, facts: dict[str, Any], on_gpu: bool) -> ArrayMemory:
    dtype = getattr(thing, "dtype", None)
    if facts.get("mask") is not None or hasattr(thing, "harden_mask"):  # "mask" is not set by NumPy
        raise InvalidArgument(
            "a masked array cannot be copied: copy its data and its mask separately"
        )
    shape, typestr = tuple(facts["shape"]), facts["typestr"]
    if "O" in typestr or getattr(dtype, "hasobject", False):
        raise InvalidArgument("an array of Python objects holds pointers, not data")
    address, read_only = facts["data"]
    item = interfaces.item_bytes(dtype, typestr)
    strides = facts.get("strides")
    found = ArrayMemory(
        address=address or 0,
        shape=shape,
        strides=tuple(strides) if strides is not None else dlpack.dense(shape, item),
        item=item,
        device=getattr(getattr(thing, "device", None), "id", ASK) if on_gpu else ASK,
        owner=thing,
        dtype=interfaces.array_dtype(dtype, typestr),
        # The CUDA array interface: 1 is the legacy stream, 2 the per-thread one.
        stream=facts.get("stream") if on_gpu else None,
        read_only="it is read-only" if read_only else "",
        kind=type(thing).__name__,
    )
    found._dense = True if strides is None else None  # None: not known yet
    return found


def _memory(view: memoryview, thing: Any) -> ArrayMemory:
    if not view.c_contiguous:
        raise InvalidArgument("a strided memoryview cannot be copied: use a NumPy array")
    return ArrayMemory(
        address=_address(view),
        shape=tuple(view.shape or ()),
        strides=tuple(view.strides or ()),
        item=view.itemsize,
        device=ASK,
        owner=view,  # the view keeps a bytearray from moving
        dtype=interfaces.format_dtype(view),
        read_only="it is read-only" if view.readonly else "",
        kind=type(thing).__name__,
    )


def _address(view: memoryview) -> int:
    if view.nbytes == 0:
        return 0
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    # ctypes refuses read-only memory. NumPy takes it.
    import numpy

    return int(numpy.frombuffer(view, numpy.uint8).ctypes.data)


def _dlpack(thing: Any) -> ArrayMemory:
    capsule = dlpack.capsule_of(thing)
    found = dlpack.read(capsule)
    on_gpu = found.device_type == dlpack.CUDA
    if not on_gpu and found.device_type not in _DLPACK_PLACES:
        raise InvalidArgument(
            f"a DLPack tensor of device type {found.device_type}: copies are of CPU and CUDA memory"
        )
    return ArrayMemory(
        address=found.address,
        shape=found.shape,
        strides=found.strides,
        item=found.item,
        device=found.device if on_gpu else _DLPACK_PLACES[found.device_type],
        owner=(thing, capsule),
        dtype=found.dtype,
        # If we pass no stream, the producer orders its work before the legacy stream.
        stream=0 if on_gpu else None,
        read_only="it is read-only" if found.read_only else "",
        kind=f"DLPack {type(thing).__name__}",
    )
