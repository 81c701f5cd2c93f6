"""Where a DLPack capsule's data lies, without taking the capsule.

Layout of `DLManagedTensor`: the DLPack specification 0.8 (dlpack.h). The capsule is not consumed, so
its producer frees it when it is dropped: whoever uses the address keeps the capsule.
"""

import ctypes
from typing import Any

from glake.errors import InvalidArgument

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13


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


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def read(capsule: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], int, int, int]:
    """(address, shape, strides in bytes, bytes of an item, device type, device) of a capsule.

    InvalidArgument for one that somebody has consumed, or whose items are not whole bytes.
    """
    try:
        tensor = ctypes.cast(_pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    except ValueError as error:
        raise InvalidArgument(f"a DLPack capsule that is not, or no longer, one: {error}") from None
    bits = tensor.bits * tensor.lanes
    if bits % 8 != 0:
        raise InvalidArgument(f"a DLPack tensor of {bits} bits an item: whole bytes can be copied")
    item = bits // 8
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * item for i in range(tensor.ndim))
    else:
        strides = dense(shape, item)
    address = (tensor.data or 0) + tensor.byte_offset
    return address, shape, strides, item, tensor.device_type, tensor.device_id


def dense(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array."""
    strides = []
    for extent in reversed(shape):
        strides.append(item)
        item *= max(extent, 1)
    return tuple(reversed(strides))
