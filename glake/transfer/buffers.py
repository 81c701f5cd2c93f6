"""What can be copied, as addresses: torch tensors, NumPy and CuPy arrays, DLPack, raw pointers."""

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from glake.errors import InvalidArgument
from glake.transfer import dlpack

HOST, ASK = -1, -2  # in place of a GPU's number: host memory; whatever the driver says it is

_DLPACK_PLACES = {
    dlpack.CPU: lambda _: ASK,  # pinned or not, or the simulator's: the driver knows
    dlpack.CUDA: lambda device: device,
    dlpack.CUDA_HOST: lambda _: HOST,
    dlpack.CUDA_MANAGED: lambda _: ASK,
}


@dataclass(frozen=True, slots=True)
class Raw:
    """`bytes` bytes at `address`: of GPU `device`, of the host (HOST), or wherever it is (ASK)."""

    address: int
    bytes: int
    device: int = ASK


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of an array. `strides` are bytes; `owner` keeps it alive; `stream` is its framework's
    current one on that GPU, None if it has none."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    device: int
    writable: bool
    owner: Any
    stream: int | None = None
    kind: str = ""  # as an error names it; dtype included

    @property
    def bytes(self) -> int:
        """Bytes of its items."""
        count = self.item
        for extent in self.shape:
            count *= extent
        return count

    @property
    def contiguous(self) -> bool:
        """Whether its items lie in C order with no gap."""
        return self.bytes == 0 or all(
            stride == whole or extent == 1
            for extent, stride, whole in zip(
                self.shape, self.strides, dlpack.dense(self.shape, self.item), strict=True
            )
        )

    def __str__(self) -> str:
        return f"{self.kind} {list(self.shape)}"


def buffer_of(thing: Any, write: bool = False) -> Buffer:
    """The memory of a tensor, an array, any DLPack or buffer object, or a `Raw`.

    InvalidArgument for anything else, and, with `write`, for what may not be written to.
    """
    if isinstance(thing, Buffer):
        found = thing
    elif isinstance(thing, Raw):
        found = _raw(thing)
    else:
        found = _framework(thing)
    if write and not found.writable:
        raise InvalidArgument(f"{found} is read-only: it cannot be the destination of a copy")
    return found


def _framework(thing: Any) -> Buffer:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        return _tensor(torch, thing)
    for interface, on_gpu in (("__cuda_array_interface__", True), ("__array_interface__", False)):
        facts = getattr(thing, interface, None)
        if facts is not None:
            return _array(thing, facts, on_gpu)
    if hasattr(thing, "__dlpack__"):
        return _dlpack(thing)
    try:
        view = memoryview(thing)
    except TypeError:
        pass
    else:
        return _memory(view, thing)
    raise InvalidArgument(
        f"{type(thing).__name__} has no memory to copy: pass a torch tensor, a NumPy or CuPy array, "
        "anything with __dlpack__, or Raw(address, bytes, device)"
    )


def _raw(raw: Raw) -> Buffer:
    for name, value, least in (("address", raw.address, 1), ("bytes", raw.bytes, 0)):
        if not isinstance(value, int) or not least <= value < 1 << 63:
            raise InvalidArgument(f"Raw: {name} {value!r} is not from {least} to 2^63")
    if raw.device < ASK:
        raise InvalidArgument(f"Raw: device {raw.device}: a GPU's number, HOST (-1) or ASK (-2)")
    return Buffer(raw.address, (raw.bytes,), (1,), 1, raw.device, True, None, kind="raw")


def _tensor(torch: Any, tensor: Any) -> Buffer:
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise InvalidArgument(
            f"a {tensor.layout} tensor on {tensor.device} has no strided memory: copy its parts "
            "(indices, values), or to_dense() first"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(
            "the tensor's conjugation or sign is still to be applied: call resolve_conj() or "
            "resolve_neg() first"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"a tensor on {tensor.device}: copies are between cpu and cuda")
    item = tensor.element_size()
    on_gpu = tensor.device.type == "cuda"
    return Buffer(
        address=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        strides=tuple(stride * item for stride in tensor.stride()),
        item=item,
        device=tensor.device.index if on_gpu else ASK,
        writable=not (tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled()),
        owner=tensor,
        stream=torch.cuda.current_stream(tensor.device).cuda_stream if on_gpu else None,
        kind=f"tensor {str(tensor.dtype).removeprefix('torch.')}",
    )


def _array(thing: Any, facts: dict[str, Any], on_gpu: bool) -> Buffer:
    if facts.get("mask") is not None:
        raise InvalidArgument("a masked array cannot be copied: copy its data and mask apart")
    if "O" in facts["typestr"]:
        raise InvalidArgument("an array of Python objects holds pointers, not data")
    address, read_only = facts["data"]
    shape = tuple(facts["shape"])
    item = int(facts["typestr"][2:])
    strides = facts.get("strides")
    return Buffer(
        address=address or 0,
        shape=shape,
        strides=tuple(strides) if strides is not None else dlpack.dense(shape, item),
        item=item,
        device=getattr(getattr(thing, "device", None), "id", ASK) if on_gpu else ASK,
        writable=not read_only,
        owner=thing,
        # The CUDA array interface: 1 is the legacy stream, 2 the per-thread one.
        stream=facts.get("stream") if on_gpu else None,
        kind=f"{type(thing).__name__} {getattr(thing, 'dtype', facts['typestr'])}",
    )


def _memory(view: memoryview, thing: Any) -> Buffer:
    if not view.c_contiguous:
        raise InvalidArgument("a strided memoryview cannot be copied: use a NumPy array")
    return Buffer(
        address=_address(view),
        shape=tuple(view.shape or ()),
        strides=tuple(view.strides or ()),
        item=view.itemsize,
        device=ASK,
        writable=not view.readonly,
        owner=thing,
        kind=f"{type(thing).__name__} {view.format}",
    )


def _address(view: memoryview) -> int:
    if view.nbytes == 0:
        return 0
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    # ctypes refuses what is read-only; NumPy does not.
    import numpy

    return int(numpy.frombuffer(view, numpy.uint8).ctypes.data)


def _dlpack(thing: Any) -> Buffer:
    capsule = thing.__dlpack__()
    address, shape, strides, item, kind, device = dlpack.read(capsule)
    if kind not in _DLPACK_PLACES:
        raise InvalidArgument(f"a DLPack tensor of device type {kind}: copies are of CPU and CUDA")
    place = _DLPACK_PLACES[kind](device)
    # Producers order a capsule after their work on the legacy stream unless told otherwise.
    stream = 0 if kind == dlpack.CUDA else None
    return Buffer(
        address, shape, strides, item, place, True, (thing, capsule), stream, "DLPack tensor"
    )
