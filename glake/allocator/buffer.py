"""GPU memory for Python: a block that NumPy-like libraries can share."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from glake import _C
from glake.allocator import debug
from glake.arguments import device_number, flag, size, whole
from glake.errors import GlakeError, InvalidArgument, InvalidDevice, InvalidPointer, WrongType

if TYPE_CHECKING:
    from typing_extensions import Self

    from glake.typing import Device, Stream

_CUDA = 2  # DLPack's kDLCUDA
_DEFAULT_STREAMS = (0, 1, 2)  # NULL, cudaStreamLegacy and cudaStreamPerThread, of any GPU
_VMM, _LEGACY = 1, 2
_KINDS = {False: 0, True: _VMM, "vmm": _VMM, "legacy": _LEGACY}

debug.report_at_exit()


class DeviceMemory:
    """Memory of one GPU that arrays can be made of: what Buffer and VirtualBuffer have in common.

    Attributes:
        ptr: its first address.
        nbytes: its size in bytes.
        device: the GPU's number.
        stream: the handle of the stream that orders its use; 0: the legacy default stream.
    """

    _kind = "memory"  # as texts name it
    _only = "it owns its memory"  # why it cannot be copied or pickled, and what can be done

    def __init__(self, nbytes: int, device: Device, stream: Stream) -> None:
        self.nbytes, self.device, self.stream = nbytes, device_number(device), stream_handle(stream)
        _free_unused()
        self._exports: weakref.WeakSet[Export] = weakref.WeakSet()
        # Held while the memory is freed, exported or recorded. A destructor may run in between that
        # uses this object on the same thread, so it is an RLock.
        self._lock = threading.RLock()
        self._ptr: int | None = None

    def _release(self, ptr: int) -> None:
        """Gives the memory back."""
        raise NotImplementedError

    def _is_there(self, ptr: int) -> bool:
        """Whether the memory is still there after an error of _release()."""
        raise NotImplementedError

    def _drop(self, ptr: int) -> None:
        """Gives the memory back when nobody holds it any more. Raises nothing."""
        raise NotImplementedError

    def _lend(self, stream: int) -> None:
        """Makes a consumer's stream wait for this one."""
        _C.stream_may_end(self.device, stream)
        _C.stream_wait(self.device, stream, self.stream)

    @property
    def read_only(self) -> bool:
        """Whether nothing may write the bytes."""
        return False

    @property
    def ptr(self) -> int:
        """The first address.

        Raises:
            InvalidPointer: it was freed.
        """
        if self._ptr is None:
            raise InvalidPointer(f"this {self._kind} of {self.nbytes} bytes has been freed")
        return self._ptr

    def free(self) -> None:
        """Frees it, in the order of its stream. A second call does nothing.

        Raises:
            InvalidPointer: arrays that were made of it through DLPack are alive, or a copy in no
                stream's order goes on. It is not freed then.
            DriverError: the driver refused. It is not freed then.
        """
        _free_unused()
        with self._lock:
            if self._ptr is None:
                return
            if self._exports:
                raise InvalidPointer(
                    f"this {self._kind} of {self.nbytes} bytes is held by {len(self._exports)} "
                    "arrays made of it through DLPack: it is freed when they are gone"
                )
            ptr, self._ptr = self._ptr, None
            try:
                self._release(ptr)
            except GlakeError:
                if self._is_there(ptr):
                    self._ptr = ptr
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.free()
        except InvalidPointer:
            if error is None:  # otherwise the error that ends the block says more
                raise

    # At exit the module's names may be None when the last objects go. A default argument is still
    # there.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        ptr = getattr(self, "_ptr", None)
        if ptr is not None and not finalizing():
            self._ptr = None
            self._drop(ptr)

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        at = "freed" if self._ptr is None else f"at {self._ptr:#x}"
        return f"<glake.{type(self).__name__} of {self.nbytes} bytes on cuda:{self.device}, {at}>"

    def __reduce_ex__(self, _: object) -> NoReturn:
        """copy and pickle ask for this. A second object would free the memory a second time."""
        raise WrongType(f"{self!r} cannot be copied or pickled, because {self._only}")

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of the bytes (uint8), as the DLPack specification says.

        The consumer's stream waits for its stream. A Buffer records the consumer's.

        Args:
            stream: the consumer's: None or 1 the legacy default one, 2 the thread's own, -1 no
                waiting, else a handle.
            max_version: (1, 0) or later gives a capsule of version 1.
            dl_device: None, or this GPU.
            copy: None or False.

        Raises:
            InvalidArgument: another value, or no pair of numbers; or the memory is read-only, and
                an older version is asked for.
            InvalidDevice: `dl_device` is not this GPU.
            InvalidPointer: it was freed.
        """
        version = (0, 0) if max_version is None else _pair("max_version", max_version)
        if dl_device is not None and _pair("dl_device", dl_device) != self.__dlpack_device__():
            raise InvalidDevice(
                f"a {self._kind} of cuda:{self.device} cannot be given as {dl_device}"
            )
        if copy:
            raise InvalidArgument(
                f"a {self._kind} is shared, not copied: glake.transfer.copy() copies"
            )
        consumer = 1 if stream is None else whole(stream)
        if consumer is None or consumer == 0 or consumer < -1:
            raise InvalidArgument(f"DLPack stream {stream!r}: None, -1, 1, 2 or a handle")
        with self._lock:
            if self.read_only and version[0] < 1:
                raise InvalidArgument(
                    "these bytes are read-only, which only DLPack 1.0 and later can say: pass "
                    "max_version=(1, 0)"
                )
            if consumer != -1 and consumer != (self.stream or 1):
                self._lend(consumer)
            export, newer = self._export(), version[0] >= 1
            return _C.dlpack(export, self.ptr, self.nbytes, self.device, newer, self.read_only)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.ptr, self.read_only),
            "strides": None,
            "version": 3,
            "stream": self.stream or 1,
        }

    def _export(self) -> Export:
        """What an array holds that is made of this. While it lives, the memory is not freed."""
        export = Export(self)
        self._exports.add(export)
        return export


class Export:
    """What an array of device memory holds."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory


class Buffer(DeviceMemory):
    """A block of one GPU's memory, of uninitialised bytes: what glake.empty() returns.

    It is freed when nothing holds it any more: neither Python, nor an array made of it through
    DLPack (`torch.from_dlpack(buffer)`, `cupy.from_dlpack(buffer)`) or `__cuda_array_interface__`.
    The end of a `with` block, or free(), frees it at once. Where that is refused because an array
    of it is alive, free() and a normal end raise InvalidPointer; an end by an exception keeps the
    exception, and the block is freed when nothing holds it. A buffer cannot be copied or pickled:
    copy.copy(), copy.deepcopy() and pickle raise WrongType.

    Attributes:
        ptr: its address.
        nbytes: its size in bytes.
        device: the GPU's number.
        stream: the handle of the stream that orders its allocation and free; 0: the legacy default
            stream.
    """

    _kind = "buffer"
    _only = (
        "it owns its block: transfer.copy() copies the bytes to another buffer, share() gives the "
        "block to another process"
    )

    def __init__(
        self, nbytes: int | str, device: Device, stream: Stream, contiguous: bool | str
    ) -> None:
        """As empty(), with all arguments."""
        if isinstance(contiguous, str) and contiguous not in _KINDS:
            raise InvalidArgument(f'contiguous {contiguous!r}: True, False, "vmm" or "legacy"')
        kind = _KINDS[contiguous if isinstance(contiguous, str) else flag("contiguous", contiguous)]
        super().__init__(size("a buffer", nbytes, 1), device, stream)
        self._contiguous = kind
        self._home: object = None
        self._ends = may_end(stream)
        self._ptr = self._allocate()

    @property
    def read_only(self) -> bool:
        """Whether the bytes lie in memory that other processes have too (glake.deduplicate())."""
        return self._home is not None

    def _allocate(self) -> int:
        """The address of a new block."""
        if self._ends:
            _C.stream_may_end(self.device, self.stream)
        if self._contiguous == 0:
            return _C.malloc(self.nbytes, self.device, self.stream)
        return _C.malloc_contiguous(self.nbytes, self.device, self.stream, self._contiguous)

    def _exported(self) -> int:
        """How many arrays that were made of it through DLPack are alive."""
        return len(self._exports)

    def _move(self, ptr: int, home: object) -> None:
        """Lets the buffer stand for bytes at another address, which `home` keeps there, and frees
        its block."""
        with self._lock:
            former, self._ptr = self.ptr, ptr
            own, self._home = self._home is None, home
        if own:
            _let_go(former)

    def _move_back(self, fill: Callable[[int], None]) -> None:
        """Gives the buffer a block of its own again. `fill` is called with its address first."""
        block = self._allocate()
        try:
            fill(block)
        except BaseException:
            _let_go(block)
            raise
        with self._lock:
            self._ptr, self._home = block, None

    def record_stream(self, stream: Stream) -> None:
        """Says that work of this stream uses the block.

        After a free, the memory is reused only once the work that the stream had by then is done.

        Args:
            stream: a torch or CuPy stream, or a handle. It may be one of another GPU.

        Raises:
            InvalidArgument: that is no stream, or the default stream of another GPU.
            InvalidPointer: the buffer was freed.
        """
        handle = stream_handle(stream)
        of = device_of(stream)
        if handle in _DEFAULT_STREAMS and of not in (None, self.device):
            raise InvalidArgument(
                f"the default stream of GPU {of} has no handle of its own: {handle} is that of the "
                f"memory's GPU {self.device}. Record another stream of GPU {of} that waits for it"
            )
        with self._lock:
            ptr = self.ptr
            if self._home is None:  # the end of a shard waits for the whole device
                if may_end(stream):
                    _C.stream_may_end(self.device, handle)
                _C.record_stream(ptr, handle)

    def _lend(self, stream: int) -> None:
        super()._lend(stream)
        if self._home is None:
            _C.record_stream(self.ptr, stream)

    def _release(self, ptr: int) -> None:
        if self._home is not None:
            self._home = None
        else:
            _C.free(ptr)

    def _is_there(self, ptr: int) -> bool:
        return is_block(ptr)

    def _drop(self, ptr: int) -> None:
        if self._home is None:
            _let_go(ptr)


class Block:
    """A block of one GPU's memory that is freed when nothing holds it: a Buffer's memory without
    its interface, for packages that allocate often.

    Attributes:
        ptr: its address.
    """

    __slots__ = ("ptr",)

    def __init__(self, nbytes: int, device: int, stream: int, ends: bool) -> None:
        """As empty(), for whole numbers. `ends`: the stream may end at any time."""
        self.ptr = 0
        _free_unused()
        if ends:
            _C.stream_may_end(device, stream)
        self.ptr = _C.malloc(nbytes, device, stream)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.ptr != 0 and not finalizing():
            _let_go(self.ptr)


def empty(
    nbytes: int | str,
    device: Device = 0,
    stream: Stream = 0,
    contiguous: bool | str = False,
) -> Buffer:
    """Allocates a block of GPU memory, not initialised, without PyTorch.

    Args:
        nbytes: bytes, 1 or more, or text such as "4GiB".
        device: 0, "cuda:0" or a torch.device.
        stream: the stream that uses it: a torch or CuPy stream, or a handle; 0: the legacy default
            stream.
        contiguous: True or "vmm": one driver allocation, for NCCL and network cards; "legacy":
            cudaMalloc's memory, which cudaIpcGetMemHandle takes too (docs/interop.md).

    Raises:
        OutOfMemory: there is no room. The text says who holds what.
        InvalidArgument: no such size, stream or kind.
        InvalidDevice: no such GPU.
        WrongType: an argument of another type.
        DriverAbsent: there is no driver.
        DriverError: the driver refused a call.
    """
    return Buffer(nbytes, device, stream, contiguous)


# What frees memory of dropped objects that could not be freed then: a copy used it, or a stream was
# being captured. Each returns False while that is so.
_unfreed: deque[Callable[[], bool]] = deque()


def free_later(free: Callable[[], bool]) -> None:
    """Calls `free` now, and again at later calls of this module, until it returns True."""
    if not free():
        _unfreed.append(free)


def _let_go(ptr: int) -> None:
    """Frees the block of a dropped buffer, now or once the copy is done that uses it in no stream's
    order."""
    free_later(functools.partial(_free_block, ptr))


def _free_block(ptr: int) -> bool:
    try:
        _C.free(ptr)
    except InvalidPointer:
        return not is_block(ptr)
    except GlakeError:  # in a forked child, or after a shutdown
        pass
    return True


def is_block(ptr: int) -> bool:
    """Whether a block still begins there. If it was freed by other means, another one may soon."""
    try:
        _C.block_info(ptr)
    except InvalidPointer:
        return False
    return True


def _free_unused() -> None:
    """Frees what could not be freed earlier."""
    for _ in range(len(_unfreed)):
        with contextlib.suppress(IndexError):  # another thread was faster
            free_later(_unfreed.popleft())


def _pair(name: str, value: Any) -> tuple[int, int]:
    numbers = tuple(map(whole, value)) if isinstance(value, tuple | list) else ()
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise InvalidArgument(f"DLPack {name} {value!r}: two whole numbers, such as (1, 0)")
    return numbers[0], numbers[1]


def capturing(device: int) -> bool:
    """Whether a stream of the GPU is being captured, as far as is known: one that was named to
    glake, or torch's current one, which glake may not have seen yet."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing():
        return True
    return _C.capturing(device)


def may_end(stream: Any) -> bool:
    """Whether a stream may end at any time, as CuPy's do with their Python objects."""
    return stream_handle(stream) != 0 and not is_permanent(stream)


def is_permanent(stream: Any) -> bool:
    """Whether it is one of torch's own, which never end: their ids are odd."""
    identity = whole(getattr(stream, "stream_id", None))
    return identity is not None and identity & 1 == 1


def device_of(stream: Any) -> int | None:
    """The GPU of a torch or CuPy stream. None: a handle does not tell, nor a stream of any GPU."""
    found = whole(getattr(stream, "device_index", None))  # torch's
    if found is None:
        found = whole(getattr(stream, "device_id", None))  # CuPy's; -1: the current one's
    return found if found is not None and found >= 0 else None


def stream_handle(stream: Any) -> int:
    """The handle of a torch or CuPy stream. Raises InvalidArgument for anything else."""
    for name in ("cuda_stream", "ptr"):  # torch's, CuPy's
        handle = whole(getattr(stream, name, None))
        if handle is not None:
            return handle
    handle = whole(stream)
    if handle is None:
        raise InvalidArgument(f"{stream!r} is no stream: a torch or CuPy stream, or its handle")
    return handle
