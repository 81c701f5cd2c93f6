"""Types of what public calls take and return. Importing it imports no other package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict, Union

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer

    from glake.transfer.array_memory import Raw
    from glake.transfer.strided import Blocks


__all__ = [
    "Array",
    "BlockArray",
    "BlockIndex",
    "CopyEnd",
    "CopyStats",
    "CopyStream",
    "CudaArray",
    "CupyStream",
    "DLPackArray",
    "Device",
    "EngineStats",
    "Json",
    "LendingStats",
    "Lent",
    "PartResult",
    "PathRefusal",
    "PathResult",
    "PathStats",
    "Snapshot",
    "SnapshotBlock",
    "SnapshotEvent",
    "SnapshotFrame",
    "SnapshotSegment",
    "Stream",
    "TransferStats",
]


class DLPackArray(Protocol):
    """An array that others take through DLPack: of torch, NumPy, CuPy or JAX, or a glake.Buffer."""

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
CopyEnd: TypeAlias = Union[int, str, "torch.device"]
"""An end of a planned copy: a GPU's number, "cuda:0", "cpu", "cpu:0" (a socket), a torch.device."""
Device: TypeAlias = Union[int, str, "torch.device"]
"""A GPU: 0, "cuda:0" or a torch.device."""
Stream: TypeAlias = Union["torch.cuda.Stream", CupyStream, int]
"""A stream: of torch or CuPy, or its handle."""
CopyStream: TypeAlias = Union[
    "torch.cuda.Stream", CupyStream, tuple[Device, int], Literal["unordered"], None
]
"""A copy's stream: of torch or CuPy, (GPU, handle), UNORDERED, or None: the framework's own."""

Json: TypeAlias = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A value that json.dumps() takes."""


class PathStats(TypedDict):
    """The traffic of one path of copies, and its health."""

    path: str
    state: str  # "healthy", "suspect" (late: gets no new copies) or "quarantined" (rests)
    why: str  # the reason, unless it is healthy
    failures: int
    chunks: int
    bytes: int


class PathResult(TypedDict):
    """The traffic of one path of a copy. Rates are GB/s."""

    path: str
    bytes: int
    chunks: int
    planned: float
    rate: float  # measured
    resent: int  # chunks
    state: str  # as of PathStats
    why: str


class PathRefusal(TypedDict):
    """A path that a copy did not take."""

    path: str
    reason: str


class _Measured(TypedDict, total=False):
    error: str
    bytes: int
    landed: int  # bytes
    time_ns: int
    rate: float  # GB/s, like the next two fields
    planned: float
    plain: float
    verified: bool  # by checksums
    resent: int  # chunks
    unknown: list[list[int]]  # [begin, end) of bytes that may be written or not
    captured: bool  # in a CUDA graph


class PartResult(_Measured):
    """What the engine reports about one of its transfers. A plain copy has fewer fields."""

    state: str
    relayed: bool
    paths: list[PathResult]
    refusals: list[PathRefusal]


class Lent(TypedDict, total=False):
    """The part of LendingStats that is about the relay service."""

    service: str
    grants: int
    hidden: list[int]
    not_reached: dict[str, str]


class LendingStats(Lent):
    """What the relay service lends. Without a service there is only the mode.

    mode: which GPUs may relay. service: its state. grants: how many have arrived. hidden: GPUs that
    the process does not see, and on which the service copies now. not_reached: GPUs that it lends
    but on which it cannot copy, and why.
    """

    mode: str


class _Relays(TypedDict, total=False):
    relays: list[int]  # GPUs that may relay; absent without a topology


class CopyStats(_Relays):
    """Figures of an engine's copies, and the copies under way."""

    transfers: int
    bytes: int
    plain_copies: int
    plain_bytes: int
    without_access: str  # which GPUs got no access to which others' memory, and why
    failed: int
    resent: int  # chunks
    running: int
    waiting: int
    enqueued: int
    slots: int
    threads: int
    paths: list[PathStats]
    kernel_launches: int
    without_kernels: str  # which GPUs copy without kernels, and why
    lent: bool


class EngineStats(CopyStats):
    """What an engine has done (glake.transfer.Engine.stats)."""

    lending: LendingStats


class TransferStats(EngineStats):
    """What the process has copied, read and written (glake.transfer.stats)."""

    files: dict[str, int]
    nodes: dict[str, int]


class SnapshotFrame(TypedDict):
    """A line of a stack."""

    filename: str
    line: int
    name: str


class _Tagged(TypedDict, total=False):
    user_metadata: str


class SnapshotBlock(_Tagged):
    """A block of a segment, live or free."""

    address: int
    size: int
    requested_size: int
    state: str
    frames: list[SnapshotFrame]


class SnapshotSegment(TypedDict):
    """A contiguous range of addresses with memory behind it."""

    device: int
    address: int
    total_size: int
    stream: int
    segment_type: str
    segment_pool_id: tuple[int, int]
    is_expandable: bool
    paused: bool  # of a region: it holds no memory now
    allocated_size: int
    active_size: int
    requested_size: int
    blocks: list[SnapshotBlock]


class _Addresses(TypedDict, total=False):
    addr: int
    device_free: int  # of the action "oom": bytes that were free


class SnapshotEvent(_Addresses):
    """Something that the allocator did."""

    action: str
    size: int
    stream: int
    pool_id: tuple[int, int]
    time_us: int
    compile_context: str
    user_metadata: str
    frames: list[SnapshotFrame]


class Snapshot(TypedDict):
    """All memory that is held, in PyTorch's form (glake.snapshot). Sizes are bytes."""

    segments: list[SnapshotSegment]
    device_traces: list[list[SnapshotEvent]]  # by device
    allocator_settings: dict[str, Json]
    external_annotations: list[Json]
