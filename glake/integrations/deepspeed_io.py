"""DeepSpeed's `async_io` and `pin_memory` extensions over glake's file engine and host pool.

Names, order and meaning of arguments are those of DeepSpeed 0.19.8. So are results: a call that
begins a request returns 0, and a call that waits returns the number of finished requests.
DeepSpeed's own extensions report a failure by -1 and a line on the terminal. Here it is a
FileFailed.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, NamedTuple

from glake import _C
from glake.errors import Corrupted, GlakeError
from glake.integrations import figures
from glake.transfer.engine import default_engine
from glake.transfer.files import FileEngine, FileTransfer
from glake.transfer.files.pieces import ALIGNMENT
from glake.transfer.host import pinned

_DEEPEST = 32  # the most threads of a handle: unlike libaio, a deeper queue takes more of them
_CHECK = 64 << 20  # bytes that are compared at a time


class pin_handle:  # noqa: N801 the name DeepSpeed asks for
    """Page-locked tensors. Each lives as long as it is used."""

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Any) -> Any:
        """A flat, uninitialised tensor of `num_elem` items of the example's dtype."""
        return locked(num_elem, example_tensor.dtype)

    def free_cpu_locked_tensor(self, tensor: Any) -> bool:
        """Returns whether the tensor is page-locked. Its memory goes back when no tensor uses it
        any more."""
        return self.is_pinned(tensor)

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        """The same for an address."""
        return _locked(address)

    def is_pinned(self, buffer: Any) -> bool:
        """Whether a tensor is in page-locked host memory, whoever pinned it."""
        return is_pinned(buffer)


class _Request(NamedTuple):
    transfer: FileTransfer
    figure: str  # the figure of glake.stats() that counts its bytes
    compared: tuple[Any, str, int] | None  # buffer, file and offset to compare at the end


class aio_handle(pin_handle):  # noqa: N801
    """Reads and writes tensors, of the host or a GPU, from and to files.

    Args:
        block_size: bytes of a request to the disk, rounded up to a multiple of 4096.
        queue_depth: the most requests under way at once; at most 32, because each has a thread
            here.
        single_submit, overlap_events: kept for their getters; requests always overlap.
        intra_op_parallelism: kept for get_alignment(); all requests are parallel.
    """

    def __init__(
        self,
        block_size: int = 1 << 20,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        self._settings = (
            block_size,
            queue_depth,
            single_submit,
            overlap_events,
            intra_op_parallelism,
        )
        self._engine = _engine(-(-block_size // ALIGNMENT) * ALIGNMENT, min(queue_depth, _DEEPEST))
        self._pending: list[_Request] = []

    def get_block_size(self) -> int:
        return self._settings[0]

    def get_queue_depth(self) -> int:
        return self._settings[1]

    def get_single_submit(self) -> bool:
        return self._settings[2]

    def get_overlap_events(self) -> bool:
        return self._settings[3]

    def get_intra_op_parallelism(self) -> int:
        return self._settings[4]

    def get_alignment(self) -> int:
        """The number of bytes of which lengths must be a multiple."""
        return self._settings[4] * ALIGNMENT

    def read(self, buffer: Any, filename: str, validate: bool, file_offset: int = 0) -> int:
        """Reads a tensor. Returns 0."""
        self._wait_for(self._read(buffer, filename, validate, file_offset))
        return 0

    def write(self, buffer: Any, filename: str, validate: bool, file_offset: int = 0) -> int:
        """Writes a tensor. Returns 0."""
        self._wait_for(self._write(buffer, filename, validate, file_offset))
        return 0

    def pread(self, buffer: Any, filename: str, validate: bool, *rest: Any, **named: Any) -> int:
        """pread(buffer, filename, validate, async, file_offset=0)."""
        return self._started(self._read, buffer, filename, validate, *rest, **named)

    def pwrite(self, buffer: Any, filename: str, validate: bool, *rest: Any, **named: Any) -> int:
        """pwrite(buffer, filename, validate, async, file_offset=0)."""
        return self._started(self._write, buffer, filename, validate, *rest, **named)

    def sync_pread(self, buffer: Any, filename: str, file_offset: int = 0) -> int:
        """Reads a tensor, and waits for all pending requests. Returns how many there were."""
        return self.pread(buffer, filename, False, False, file_offset)

    def sync_pwrite(self, buffer: Any, filename: str, file_offset: int = 0) -> int:
        """Writes a tensor, and waits for all pending requests. Returns how many there were."""
        return self.pwrite(buffer, filename, False, False, file_offset)

    def async_pread(self, buffer: Any, filename: str, file_offset: int = 0) -> int:
        """Begins to read a tensor. Returns 0."""
        return self.pread(buffer, filename, False, True, file_offset)

    def async_pwrite(
        self,
        buffer: Any,
        filename: str | int | None = None,
        file_offset: int = 0,
        fd: int | None = None,
    ) -> int:
        """Begins to write a tensor to a file's name, or to an open descriptor. Returns 0."""
        to = fd if filename is None else filename
        return self.pwrite(buffer, to, False, True, file_offset)  # type: ignore[arg-type]

    def wait(self) -> int:
        """Waits for all requests, and returns how many were pending. All are over when it returns
        or raises.

        Raises:
            FileFailed: the error of the first request that failed.
            Corrupted: a file differs from its tensor, if the request asked for that check.
        """
        pending, self._pending = self._pending, []
        error: GlakeError | None = None
        for each in pending:
            try:
                self._wait_for(each)
            except GlakeError as failure:
                error = error or failure
        if error is not None:
            raise error
        return len(pending)

    def _started(
        self, begin: Any, buffer: Any, filename: str, validate: bool, *rest: Any, **named: Any
    ) -> int:
        names = ("async", "file_offset")
        given = dict(zip(names, rest, strict=False)) | named
        if "async" not in given or set(given) - set(names) or len(rest) > len(names):
            raise TypeError("takes buffer, filename, validate, async and file_offset=0")
        self._pending.append(begin(buffer, filename, validate, given.get("file_offset", 0)))
        return 0 if given["async"] else self.wait()

    def _read(self, buffer: Any, filename: str, validate: bool, offset: int) -> _Request:
        transfer = self._engine.read(filename, buffer, offset)
        return _Request(transfer, "read_bytes", (buffer, filename, offset) if validate else None)

    def _write(self, buffer: Any, filename: str, validate: bool, offset: int) -> _Request:
        transfer = self._engine.write(filename, buffer.detach(), offset)
        return _Request(transfer, "written_bytes", (buffer, filename, offset) if validate else None)

    def _wait_for(self, request: _Request) -> None:
        request.transfer.wait()
        figures.add("deepspeed", request.figure, request.transfer.bytes)
        if request.compared is not None:
            _compare(*request.compared)


def aio_read(
    buffer: Any,
    filename: str,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Reads a tensor with a handle of its own."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).read(
        buffer, filename, validate
    )


def aio_write(
    buffer: Any,
    filename: str,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Writes a tensor with a handle of its own."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).write(
        buffer, filename, validate
    )


def deepspeed_memcpy(dest: Any, src: Any) -> int:
    """Copies a tensor into another one. Returns 0."""
    dest.copy_(src)
    return 0


def locked(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """A tensor of page-locked memory, uninitialised."""
    made = pinned(shape, dtype)
    figures.add("deepspeed", "pinned_bytes", made.nbytes)
    return made


def is_pinned(tensor: Any) -> bool:
    """Whether a tensor is in page-locked host memory, whoever pinned it."""
    return tensor.device.type == "cpu" and tensor.numel() > 0 and _locked(tensor.data_ptr())


def _locked(address: int) -> bool:
    default_engine()  # it knows whose memory is where, as the emulation's GPUs have CPU tensors
    gpu, known = _C.place_of(address)
    return bool(known and gpu < 0)


_CONTENTS = {
    "async_io": (aio_handle, aio_read, aio_write, deepspeed_memcpy),
    "pin_memory": (pin_handle,),
}


@functools.cache
def module(name: str) -> ModuleType:
    """The module for DeepSpeed's slot "async_io" or "pin_memory"."""
    made = ModuleType(f"glake_deepspeed_{name}")
    for each in _CONTENTS[name]:
        setattr(made, each.__name__, each)
    return made


@functools.cache
def _engine(block: int, depth: int) -> FileEngine:
    """The engine of all handles with the same settings. Sharing it bounds their pinned buffers."""
    return FileEngine(block, depth)


def _compare(buffer: Any, filename: str, offset: int) -> None:
    import torch

    there = buffer.detach().reshape(-1).view(torch.uint8).cpu()
    with open(filename, "rb") as file:
        file.seek(offset)
        for at in range(0, there.numel(), _CHECK):
            part = there[at : at + _CHECK]
            read = file.read(part.numel())
            if len(read) != part.numel() or not torch.equal(
                torch.frombuffer(bytearray(read), dtype=torch.uint8), part
            ):
                raise Corrupted(f"{filename} differs from its tensor within bytes {offset + at} on")
