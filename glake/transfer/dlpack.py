"""Finds the data of a DLPack capsule without consuming the capsule.

Layout of `DLManagedTensor` and, from version 1 on, `DLManagedTensorVersioned`: the DLPack
specification (dlpack.h, 0.8 and 1.0). The capsule is not consumed, so its producer frees the memory
when the capsule is dropped. Whoever uses the address must keep the capsule.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

from glake.errors import InvalidArgument

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY = 1  # a flag of the capsule
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True)
class Contents:
    """The content of a capsule. `strides` are bytes. `dtype` is empty if NumPy has no name for
    it."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    dtype: str
    device_type: int
    device: int
    read_only: bool


def capsule_of(producer: Any) -> Any:
    """A capsule. It has version 1 if the producer offers that, because only version 1 says what is
    read-only."""
    try:
        return producer.__dlpack__(max_version=(1, 0))
    except TypeError:  # the producer is older than DLPack 1.0
        return producer.__dlpack__()


def read(capsule: Any) -> Contents:
    """The content. Raises InvalidArgument if the capsule was consumed, or if items are not whole
    bytes."""
    read_only = False
    if _is_valid(capsule, b"dltensor_versioned"):
        whole = ctypes.cast(
            _pointer_of(capsule, b"dltensor_versioned"), ctypes.POINTER(_Versioned)
        ).contents
        if whole.major != 1:
            raise InvalidArgument(
                f"a DLPack capsule of version {whole.major}: version 1 is the newest known"
            )
        tensor, read_only = whole.tensor, bool(whole.flags & READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        tensor = ctypes.cast(_pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    else:
        raise InvalidArgument("not a DLPack capsule, or one that has been consumed already")
    bits = tensor.bits * tensor.lanes
    if bits % 8 != 0:
        raise InvalidArgument(f"a DLPack tensor of {bits} bits an item: whole bytes can be copied")
    item = bits // 8
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * item for i in range(tensor.ndim))
    else:
        strides = dense(shape, item)
    kind = _CODES.get(tensor.code, "") if tensor.lanes == 1 else ""
    dtype = kind if kind in ("", "bool") else f"{kind}{tensor.bits}"
    address = (tensor.data or 0) + tensor.byte_offset
    return Contents(
        address, shape, strides, item, dtype, tensor.device_type, tensor.device_id, read_only
    )


def dense(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """The strides in bytes of a C-contiguous array."""
    strides = []
    for extent in reversed(shape):
        strides.append(item)
        item *= max(extent, 1)
    return tuple(reversed(strides))
