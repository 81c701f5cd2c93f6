"""Memory of the simulated GPUs, as tests use it."""

import ctypes
from typing import Any

import numpy as np

from glake import _C
from glake import transfer as t

MIB = 1 << 20


class Device:
    """An array in a simulated GPU's memory, with the interface that CuPy's arrays have."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = "uint8", gpu: int = 0) -> None:
        self.dtype, self.shape, self.gpu = np.dtype(dtype), shape, gpu
        self.bytes = int(np.prod(shape)) * self.dtype.itemsize
        self.address = _C.malloc(max(self.bytes, 1), gpu)
        self.strides: tuple[int, ...] | None = None
        self.offset = 0
        self.read_only = False
        self.base: Any = None

    def __del__(self) -> None:
        if self.base is None:
            _C.free(self.address)

    @property
    def device(self) -> Any:
        class Where:
            id = self.gpu

        return Where

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address + self.offset, self.read_only),
            "strides": self.strides,
            "version": 3,
        }

    def like(self, view: np.ndarray, whole: np.ndarray) -> "Device":
        """The same part of this array as `view` is of `whole`, which has this array's shape."""
        part = Device.__new__(Device)
        part.dtype, part.gpu, part.read_only, part.base = view.dtype, self.gpu, False, self
        part.address, part.shape, part.strides = self.address, view.shape, view.strides
        part.offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        return part

    def set(self, value: np.ndarray) -> "Device":
        """Writes all of it without the engine. Simulated device memory can be written directly."""
        value = np.ascontiguousarray(value, self.dtype)
        assert value.nbytes == self.bytes
        ctypes.memmove(self.address, value.ctypes.data, self.bytes)
        return self

    def get(self) -> np.ndarray:
        """Reads all of it."""
        value = np.empty(self.shape, self.dtype)
        ctypes.memmove(value.ctypes.data, self.address, self.bytes)
        return value

    def raw(self) -> "t.Raw":
        """Its address and size alone."""
        return t.Raw(self.address, self.bytes, self.gpu)


def numbers(count: int, seed: int = 0) -> np.ndarray:
    """Random bytes, so that no two places look alike."""
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
