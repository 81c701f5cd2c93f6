"""Types of what public calls take, for annotations. Importing it imports no other package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer

    from glake.transfer.buffers import Raw
    from glake.transfer.runs import Blocks


__all__ = [
    "Array",
    "BlockArray",
    "BlockIndex",
    "CopyEnd",
    "CopyStream",
    "CudaArray",
    "CupyStream",
    "DLPackArray",
    "Device",
    "Stream",
]


class DLPackArray(Protocol):
    """An array that others take through DLPack: of torch, NumPy, CuPy, JAX, or a glake.Buffer."""

    @property
    def __dlpack__(self) -> Callable[..., object]: ...


class CudaArray(Protocol):
    """A GPU array with `__cuda_array_interface__`: of CuPy, Numba, torch, or a glake.Buffer."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]: ...


class CupyStream(Protocol):
    """A stream of CuPy, or of another package that has its handle in `ptr`."""

    @property
    def ptr(self) -> int: ...


Array: TypeAlias = Union["DLPackArray", "CudaArray", "Buffer", "Raw"]
"""What a copy reads or writes: a tensor, an array, a buffer object (PEP 688), or `Raw` memory."""
BlockArray: TypeAlias = Union[Array, "Blocks"]
"""What holds blocks: an array along its first dimension, or `Blocks`."""
BlockIndex: TypeAlias = Sequence[int] | DLPackArray | None
"""Numbers of blocks, in a sequence or an array of whole numbers; None: all."""
CopyEnd: TypeAlias = Union[str, "torch.device"]
"""An end of a planned copy: "cuda:0", "cpu", "cpu:0" (a socket) or a torch.device."""
Device: TypeAlias = Union[int, str, "torch.device"]
"""A GPU: 0, "cuda:0" or a torch.device."""
Stream: TypeAlias = Union["torch.cuda.Stream", CupyStream, int]
"""A stream: of torch or CuPy, or its handle."""
CopyStream: TypeAlias = Union[
    "torch.cuda.Stream", CupyStream, tuple[int, int], Literal["unordered"], None
]
"""A copy's stream: of torch or CuPy, (GPU, handle), UNORDERED, or None: the framework's own."""
