"""Virtual buffers: addresses of one GPU whose pages are backed with memory one by one.

An array in such a buffer grows in place. docs/virtual.md explains it. Every function raises the
errors of glake.errors.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import weakref
from typing import TYPE_CHECKING, Any

from glake import _C
from glake.allocator.buffer import (
    DeviceMemory,
    capturing,
    free_later,
    may_end,
    stream_handle,
)
from glake.arguments import count, size
from glake.errors import DriverError, GlakeError, InvalidArgument, InvalidPointer, WrongType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from glake.typing import Device, Stream

PAGE = 2 << 20


class VirtualBuffer(DeviceMemory):
    """Addresses of one GPU; what glake.reserve() returns. Memory is behind the backed pages only.

    Kernels and copies may use backed pages alone: the rest faults, or is memory of others. Pages
    that are unbacked serve every other request of the device at once, in stream order, without a
    driver call, and are backed again as cheaply if nobody has taken their memory meanwhile.

    The addresses are given back when nothing holds them any more, as a Buffer is freed: neither
    Python, nor an array made of it. Then, and in free(), the host waits for the device's work.

    Attributes:
        ptr: its first address.
        nbytes: its size in bytes, in whole pages of 2 MiB.
        device: the GPU's number.
        stream: the handle of the stream that orders back(), unback() and free() unless they are
            given another; 0: the legacy default stream.
    """

    _kind = "virtual buffer"
    _only = "it owns its addresses: transfer.copy() copies the bytes of backed pages elsewhere"

    def __init__(self, nbytes: int | str, device: Device, stream: Stream) -> None:
        """As reserve(), with all arguments."""
        pages = -(-size("a virtual buffer", nbytes, 1) // PAGE)
        super().__init__(pages * PAGE, device, stream)
        self._given = stream  # CuPy's streams end with their objects
        self._others: dict[int, weakref.ref[Any]] = {}  # other streams that used it, by handle
        self._of(stream)
        self._ptr = _C.virtual_reserve(self.nbytes, self.device)

    def back(self, begin: int = 0, end: int | None = None, stream: Stream | None = None) -> None:
        """Backs all pages that have a byte in [begin, end), and does all or nothing.

        Pages that are backed already stay as they are. The contents of the others are undefined. A
        page that must be mapped anew may make the caller wait for the work that used the page
        before it was unbacked.

        Args:
            begin: offset in bytes.
            end: offset in bytes; None: to the end.
            stream: the stream that uses the pages; None: the buffer's own.

        Raises:
            OutOfMemory: there is no room. The text says who holds what.
            InvalidArgument: the part does not lie in the buffer, or a page would have to be mapped
                anew while a stream is being captured.
            InvalidPointer: the buffer was freed.
            WrongType: an offset is no whole number.
            DriverError: the driver refused a call.
        """
        offset, nbytes = self._part(begin, end)
        if nbytes:
            _C.virtual_back(self.ptr, offset, nbytes, self._of(stream))

    def unback(self, begin: int = 0, end: int | None = None, stream: Stream | None = None) -> None:
        """Gives the memory of all pages that lie in [begin, end) as a whole to later requests.

        Work that the stream has by now may still use it. Work of other streams must be ordered
        before. Makes no driver call. Pages that are not backed are left out.

        Args:
            begin: offset in bytes.
            end: offset in bytes; None: to the end.
            stream: the stream that used the pages; None: the buffer's own.

        Raises:
            InvalidArgument: the part does not lie in the buffer.
            InvalidPointer: the buffer was freed, or a copy in no stream's order uses the pages.
            WrongType: an offset is no whole number.
        """
        offset, nbytes = self._part(begin, end)
        if nbytes:
            _C.virtual_unback(self.ptr, offset, nbytes, self._of(stream))

    def alias(
        self,
        begin: int,
        source: VirtualBuffer,
        source_begin: int,
        nbytes: int,
        stream: Stream | None = None,
    ) -> None:
        """Backs pages by the memory of as many pages of `source`, which may be the same buffer.

        What is written through one is seen through the other by work that comes later in stream
        order. The memory is free once all pages that share it are unbacked. What backed the pages
        before is given back in the order of the stream, as by unback().

        Args:
            begin: offset in bytes, a multiple of 2 MiB.
            source: a buffer of the same GPU.
            source_begin: offset in `source` in bytes, a multiple of 2 MiB.
            nbytes: bytes, a multiple of 2 MiB.
            stream: the stream that used the pages; None: the buffer's own.

        Raises:
            InvalidArgument: a number is no such multiple, or a page of `source` is not backed; or
                the two are of two GPUs; or a page would have to be mapped anew while a stream is
                being captured.
            InvalidPointer: a buffer was freed, or a copy in no stream's order uses the pages.
            WrongType: an offset is no whole number, or `source` is no virtual buffer.
            DriverError: the driver refused a call.
        """
        if not isinstance(source, VirtualBuffer):
            raise WrongType(f"the source of an alias is a virtual buffer, not {source!r}")
        to, _ = self._part(begin, None)
        from_, _ = source._part(source_begin, None)
        bytes_ = count("bytes of an alias", nbytes)
        if bytes_ < 1:
            raise InvalidArgument(f"an alias of {bytes_} bytes: 2 MiB or more")
        _C.virtual_alias(self.ptr, to, source.ptr, from_, bytes_, self._of(stream))

    @property
    def backed(self) -> int:
        """Bytes of backed pages."""
        return self.figures()[0]

    @property
    def shared(self) -> int:
        """Bytes of backed pages that share their memory with other pages."""
        return self.figures()[1]

    @property
    def mapped(self) -> int:
        """Bytes of pages that are mapped. Those that are not backed hold no memory of their own."""
        return self.figures()[2]

    def figures(self, begin: int = 0, end: int | None = None) -> tuple[int, int, int]:
        """`backed`, `shared` and `mapped` of the pages that have a byte in [begin, end).

        Args:
            begin: offset in bytes.
            end: offset in bytes; None: to the end.

        Raises:
            InvalidArgument: the part does not lie in the buffer.
            InvalidPointer: the buffer was freed.
            WrongType: an offset is no whole number.
        """
        offset, nbytes = self._part(begin, end)
        if nbytes == 0:
            return 0, 0, 0
        _, backed, shared, mapped = _C.virtual_info(self.ptr, offset, nbytes)
        return backed, shared, mapped

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], begin: int = 0) -> torch.Tensor:
        """A torch tensor over a part of the buffer, backed or not, which keeps the buffer.

        With PyTorch's CUDA build it is a CUDA tensor. With a build for the CPU and
        GLAKE_DRIVER=sim it is a CPU tensor in the simulated GPU's memory. Its storage is that part
        alone. copy.deepcopy(), pickle and torch.save() of the tensor, or of a slice, read all of
        the storage, which must be backed then.

        Args:
            dtype: the elements' type.
            shape: their number in each dimension.
            begin: offset in bytes of the first one.

        Raises:
            InvalidArgument: the tensor does not fit in the buffer, or is not aligned.
            InvalidPointer: the buffer was freed.
            WrongType: `dtype` is no torch.dtype, or a number is no whole number.
            GlakeError: there is no PyTorch, or it cannot use this device.
        """
        package = _torch()
        if not isinstance(dtype, package.dtype):
            raise WrongType(f"the dtype of a tensor is a torch.dtype, not {dtype!r}")
        numbers = [count("a dimension", each) for each in shape]
        offset, room = self._part(begin, None)
        nbytes = math.prod(numbers) * dtype.itemsize
        if min(numbers, default=1) < 0 or nbytes > room or offset % dtype.itemsize:
            raise InvalidArgument(
                f"a tensor of {tuple(numbers)} {dtype} at offset {offset}: the buffer has {room} "
                f"bytes from there on, and an offset is a multiple of {dtype.itemsize}"
            )
        # A tensor that is made in inference mode could not be written outside it.
        with package.inference_mode(False):
            part: torch.Tensor = package.empty(0, dtype=package.uint8)
            if nbytes:
                part = self._bytes(package, offset, nbytes)
            return part.view(dtype).view(numbers)

    def _part(self, begin: int, end: int | None) -> tuple[int, int]:
        """Offset and size in bytes."""
        first = count("an offset", begin)
        last = self.nbytes if end is None else count("an offset", end)
        if not 0 <= first <= last <= self.nbytes:
            raise InvalidArgument(
                f"bytes [{first}, {last}) of a virtual buffer that has [0, {self.nbytes})"
            )
        return first, last - first

    def _bytes(self, torch: Any, offset: int, nbytes: int) -> Any:
        """A torch tensor of these bytes, which keeps the buffer."""
        with self._lock:
            if torch.version.cuda is not None:
                return torch.from_dlpack(_Part(self, offset, nbytes))
            if "simcuda" not in _C.driver_path():
                raise GlakeError(
                    f"this PyTorch ({torch.__version__}) has no CUDA, so it cannot use memory of "
                    f"{_C.driver_path()}"
                )
            memory: Any = (ctypes.c_ubyte * nbytes).from_address(self.ptr + offset)
            memory.owner = self._export()
            return torch.frombuffer(memory, dtype=torch.uint8)

    def _of(self, stream: Stream | None) -> int:
        if stream is None:
            return self.stream
        handle = stream_handle(stream)
        if may_end(stream):
            _C.stream_may_end(self.device, handle)
            with contextlib.suppress(TypeError):  # a number has no life of its own
                self._others[handle] = weakref.ref(stream)
        return handle

    def _streams(self) -> list[Stream]:
        """The streams that may end but are there still."""
        others = [reference() for reference in self._others.values()]
        return [each for each in (self._given, *others) if each is not None and may_end(each)]

    def _capturing(self) -> bool:
        """Whether a stream of the GPU is being captured, as far as is known."""
        return _captured(self.device, self._streams())

    def _release(self, ptr: int) -> None:
        if self._capturing():
            raise InvalidArgument(
                f"the virtual buffer at {ptr:#x} cannot be freed while a stream is being captured, "
                "because captured work may use it; do it after the capture"
            )
        _C.virtual_free(ptr)

    def _is_there(self, ptr: int) -> bool:
        return _is_range(ptr)

    def _drop(self, ptr: int) -> None:
        free_later(functools.partial(_free_range, ptr, self.device, self._streams()))


def reserve(nbytes: int | str, device: Device = 0, stream: Stream = 0) -> VirtualBuffer:
    """Reserves addresses of a GPU, without memory: VirtualBuffer.back() adds it page by page.

    Args:
        nbytes: bytes, 1 or more, or text such as "512GiB"; rounded up to 2 MiB. It may be far more
            than the GPU has.
        device: 0, "cuda:0" or a torch.device.
        stream: the stream that uses it: a torch or CuPy stream, or a handle; 0: the legacy default
            stream.

    Raises:
        InvalidArgument: no such size or stream.
        InvalidDevice: no such GPU.
        WrongType: an argument of another type.
        DriverAbsent: there is no driver.
        DriverError: the driver refused the addresses.
    """
    return VirtualBuffer(nbytes, device, stream)


class _Part:
    """A part of a buffer, for torch.from_dlpack(). No stream waits for another one, because pages
    are ordered by back()."""

    def __init__(self, buffer: VirtualBuffer, offset: int, nbytes: int) -> None:
        self._buffer, self._at, self._nbytes = buffer, buffer.ptr + offset, nbytes

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._buffer.__dlpack_device__()

    def __dlpack__(self, **_: object) -> object:
        buffer = self._buffer
        return _C.dlpack(buffer._export(), self._at, self._nbytes, buffer.device, False, False)


def _captured(device: int, streams: list[Stream]) -> bool:
    """Whether a stream of the GPU is being captured.

    Of a stream that may end, glake knows only what it was when it was last named. So these are
    named again.
    """
    for stream in streams:
        if not isinstance(stream, int):  # nobody knows whether a number's stream is there
            _C.stream_may_end(device, stream_handle(stream))
    return capturing(device)


def _free_range(ptr: int, device: int, streams: list[Stream]) -> bool:
    try:
        if _captured(device, streams):
            return False
        _C.virtual_free(ptr)
    except (InvalidArgument, DriverError):  # a stream is being captured, or the driver refused
        return False
    except InvalidPointer:  # a copy in no stream's order uses it
        return not _is_range(ptr)
    except GlakeError:  # in a forked child, or after a shutdown
        pass
    return True


def _is_range(ptr: int) -> bool:
    try:
        _C.virtual_info(ptr, 0, 1)
    except InvalidPointer:
        return False
    return True


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise GlakeError("VirtualBuffer.tensor() is for PyTorch, which is not installed") from error
