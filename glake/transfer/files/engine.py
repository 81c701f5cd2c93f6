"""The threads that read and write files, and their pinned buffers."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glake import arguments
from glake.errors import (
    FileFailed,
    InvalidArgument,
    TransferClosed,
)
from glake.transfer import flat, handle
from glake.transfer.array_memory import HOST, ArrayMemory, Raw, memory_of
from glake.transfer.engine import default_engine, written
from glake.transfer.files.gds import Gds, GdsFile
from glake.transfer.files.handle import FileTransfer
from glake.transfer.files.pieces import ALIGNMENT, Piece, cut
from glake.transfer.host import pinned_block

if TYPE_CHECKING:
    from glake.typing import Array

# On a disk of 2.4 to 3.2 GB/s, 16 threads with 1 MiB each read and wrote at its full rate. With 128
# KiB they took five times as much CPU time for the same rate (two cores, 2026-11-24). With 4 MiB
# the interpreter has time for other work.
BLOCK = 4 << 20
DEPTH = 16
_MOST_PIECES = 1 << 22  # in one request: 16 TiB in blocks of 4 MiB
_MOST_ENDED = 64


@dataclass
class FileStats:
    """The figures of an engine since it was made.

    Attributes:
        reads, writes: requests that have ended well.
        read_bytes, written_bytes: bytes of all requests, also of those that failed later.
        direct_bytes: the part of these bytes that went past the page cache.
        gds_bytes: the part that went between disk and GPU by GPUDirect Storage.
        failed: requests that failed, also those whose file could not be opened.
        buffer_bytes: bytes of the pinned buffers that GPU memory's pieces use now.
    """

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    direct_bytes: int = 0
    gds_bytes: int = 0
    failed: int = 0
    buffer_bytes: int = 0


# The figures of closed engines, one entry for each. It is a deque, because an engine's finalizer
# may run inside any call and must not take a lock.
_ended: deque[FileStats] = deque()
_engines: weakref.WeakSet[FileEngine] = weakref.WeakSet()


def _forget() -> None:
    """Starts a forked child's counters from zero, as if the parent had had no engine."""
    global _ended, _engines
    _ended, _engines = deque(), weakref.WeakSet()


os.register_at_fork(after_in_child=_forget)


def totals() -> FileStats:
    """The sums over all engines that the process has had."""
    parts = [engine._stats for engine in list(_engines)] + list(_ended)
    if len(_ended) > _MOST_ENDED:
        older = [_ended.popleft() for _ in range(_MOST_ENDED)]
        _ended.append(_sum(older))
    return _sum(parts)


def _sum(parts: list[FileStats]) -> FileStats:
    return FileStats(*map(sum, zip(*map(astuple, [FileStats(), *parts]), strict=True)))


def _end(stats: FileStats, made_by: object) -> None:
    if made_by is handle.family():
        stats.buffer_bytes = 0  # its buffers are gone
        _ended.append(stats)


@dataclass
class _File:
    """A file of one request. It is open twice if its file system can do direct I/O: through the
    page cache, and past it."""

    path: str
    cached: int
    direct: int | None
    write: bool
    gds: GdsFile | None = None

    def close(self) -> None:
        """Closes all descriptors."""
        if self.gds is not None:
            self.gds.close()
        os.close(self.cached)
        if self.direct is not None:
            os.close(self.direct)


@dataclass
class _Request:
    file: _File
    address: int
    gpu: int  # the GPU whose memory it is, or HOST
    stream: Any  # of the copies to and from the GPU
    handle: FileTransfer
    taken: bool = False  # its file is closed by a thread, or by _begin()
    dropped: bool = False  # its caller was interrupted before


class FileEngine:
    """Reads and writes files in pieces, several at once, on threads that wait for the disk.

    Whole blocks go past the page cache if the file system allows it and the memory begins at a
    multiple of 4096 bytes. pinned() gives such memory, and torch's large tensors have it. GPU
    memory goes through pinned buffers, which have it: one of at most `block` bytes for each thread.
    Other memory goes through the page cache. The engine uses threads and not io_uring, because
    container runtimes forbid io_uring by default. With blocks of this size it would gain nothing.

    Args:
        block: bytes of a piece, a multiple of 4096, or text such as "4MiB".
        depth: the most pieces under way at once, 1 to 256. Each has a thread, which starts when it
            is needed.
        direct: False: everything goes through the page cache.
        gds: True: whole blocks of GPU memory go by GPUDirect Storage (kvikio), without pinned
            buffers. Blocks that cuFile does not take go through the buffers. stats() tells how much
            went which way. Not seen on hardware.

    Raises:
        InvalidArgument, WrongType: another block or depth; gds without direct.
        PackageMissing, DriverAbsent: `gds` is set, but there is no kvikio, or no GPUDirect Storage.
        TransferClosed: the interpreter ends.
    """

    def __init__(
        self,
        block: str | int = BLOCK,
        depth: int = DEPTH,
        direct: bool = True,
        gds: bool = False,
    ) -> None:
        self.block = arguments.size("block", block)
        if self.block < ALIGNMENT or self.block % ALIGNMENT:
            raise InvalidArgument(f"block of {self.block} bytes: a multiple of {ALIGNMENT}, not 0")
        whole = arguments.whole(depth)
        if whole is None or not 1 <= whole <= 256:
            raise InvalidArgument(f"depth {depth!r}: pieces under way at once, 1 to 256")
        self.depth = whole
        self._direct = arguments.flag("direct", direct)
        if arguments.flag("gds", gds) and not direct:
            raise InvalidArgument("gds=True goes past the page cache: leave direct=False out")
        self._gds = Gds() if gds else None
        self._stats = FileStats()
        self._lock = threading.Lock()
        self._ending: ThreadPoolExecutor | None = None
        self._family = handle.family()
        _engines.add(self)
        weakref.finalize(self, _end, self._stats, self._family).atexit = False
        try:
            made = ThreadPoolExecutor(self.depth, thread_name_prefix="glake-file")
            made.submit(int)  # starts one thread: the system may refuse others later
        except RuntimeError as error:
            raise TransferClosed(f"no file engine: {error}") from None
        self._threads: ThreadPoolExecutor | None = made

    def read(
        self, path: str | os.PathLike[str] | int, into: Array, offset: int = 0
    ) -> FileTransfer:
        """Starts reading a file into memory, which is filled when the handle is done.

        Args:
            path: the file, or a descriptor of an open one, which may be closed at once.
            into: a contiguous tensor, array, buffer object or `Raw`, of the host or a GPU. All of
                it is filled. GPU memory is written in the order of the current stream.
            offset: the first byte of the file to read.

        Raises:
            InvalidArgument: memory with gaps or read-only, a negative offset.
            FileFailed: there is no such file. If the file is too short, the handle raises it.
        """
        going = self._start(path, memory_of(into, write=True), offset, write=False)
        written(into)
        return going

    def write(
        self, path: str | os.PathLike[str] | int, data: Array, offset: int = 0
    ) -> FileTransfer:
        """Starts writing memory to a file. The file is made if it does not exist, and never cut
        short.

        The memory must stay as it is until the handle is done. The kernel has the bytes then. The
        caller must call os.fsync if they must be on the disk.

        Args:
            path: the file, or a descriptor of one open for writing.
            data: a contiguous tensor, array, buffer object or `Raw`, of the host or a GPU. GPU
                memory is read in the order of the current stream.
            offset: where in the file.

        Raises:
            InvalidArgument: memory with gaps, a negative offset.
            FileFailed: the file cannot be opened. If the disk is full, the handle raises it.
        """
        return self._start(path, memory_of(data), offset, write=True)

    def stats(self) -> dict[str, int]:
        """The figures so far: the fields of FileStats."""
        handle.require_own(self._family)
        with self._lock:
            return asdict(self._stats)

    def close(self) -> None:
        """Waits for requests under way and ends the threads. A second call, or one in a forked
        child, does nothing."""
        if self._family is not handle.family():
            return
        with self._lock:
            threads, self._threads = self._threads, None
            self._ending = threads or self._ending
        if self._ending is not None:
            self._ending.shutdown(wait=True)  # every call of close() waits

    def __enter__(self) -> FileEngine:
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def _start(
        self, path: str | os.PathLike[str] | int, memory: ArrayMemory, offset: int, write: bool
    ) -> FileTransfer:
        handle.require_own(self._family)
        at = arguments.whole(offset)
        if at is None or at < 0:
            raise InvalidArgument(f"offset {offset!r}: bytes from the file's start, 0 or more")
        flat.require(memory)
        if memory.bytes > _MOST_PIECES * self.block or at + memory.bytes >= 1 << 63:
            raise InvalidArgument(
                f"{memory.bytes} bytes from {at} on: a request has at most {_MOST_PIECES} blocks, "
                f"of {self.block} bytes here, and a file 2^63 bytes"
            )
        gpu = flat.gpu_of(memory)
        stream = flat.stream_of(memory, gpu)
        pieces = list(cut(at, memory.bytes, self.block))
        try:
            file = _opened(path, write, self._direct)
        except FileFailed:
            with self._lock:
                self._stats.failed += 1
            raise
        going = FileTransfer(file.path, memory.bytes, len(pieces), memory)
        request = _Request(file, memory.address, gpu, stream, going)
        try:
            if self._gds is not None and gpu != HOST:
                file.gds = self._gds.open(f"/proc/self/fd/{file.cached}", write)
            self._begin(request, pieces)
        except BaseException:  # also an interrupt, after which a thread may have the request
            with self._lock:
                request.dropped = not request.taken
            if request.dropped:
                file.close()
            raise
        return going

    def _begin(self, request: _Request, pieces: list[Piece]) -> None:
        """Gives the request to the threads as one task, so that an interrupt finds all of it begun,
        or nothing. Raises TransferClosed."""
        with self._lock:  # close() waits for the task, or sees none
            threads = self._threads
            if threads is None:
                raise TransferClosed("this file engine is closed")
            if not pieces:
                request.taken = True
                self._stats.writes += request.file.write
                self._stats.reads += not request.file.write
            try:
                if pieces:
                    threads.submit(self._spread, threads, request, pieces)
            except RuntimeError as error:
                if _is_over(error):
                    raise TransferClosed("no file engine: the interpreter ends") from None
        if not pieces:
            request.file.close()

    def _spread(self, threads: ThreadPoolExecutor, request: _Request, pieces: list[Piece]) -> None:
        """Gives the pieces to the threads, on one of them, and carries the first one itself. Once
        the engine or the interpreter ends, it carries all that the others do not take."""
        with self._lock:
            if request.dropped:
                return
            request.taken = True
        own = pieces[:1]
        for piece in pieces[1:]:
            try:
                threads.submit(self._carry, request, piece)
            except RuntimeError as error:
                if _is_over(error):
                    own.append(piece)
        for piece in own:
            self._carry(request, piece)

    def _carry(self, request: _Request, piece: Piece) -> None:
        """Carries one piece, on a thread. Pieces behind a failed one are left out."""
        error: BaseException | None = None
        direct = gds = False
        if not request.handle.failed:
            try:
                if request.gpu == HOST:
                    address = request.address + piece.start
                    direct = _move(request.file, piece, address)
                elif _by_gds(request, piece):
                    direct = gds = True
                else:
                    direct = self._through_buffer(request, piece)
            except BaseException as failure:
                error = failure
        self._over(request, piece, error, direct, gds)

    def _over(
        self,
        request: _Request,
        piece: Piece,
        error: BaseException | None,
        direct: bool,
        gds: bool = False,
    ) -> None:
        stats, going, write = self._stats, request.handle, request.file.write
        moved = 0 if error is not None or going.failed else piece.bytes
        with self._lock:  # stats() has the piece before the handle is done
            stats.written_bytes += moved if write else 0
            stats.read_bytes += 0 if write else moved
            stats.direct_bytes += moved if direct else 0
            stats.gds_bytes += moved if gds else 0
        if not going.settle(moved, error):
            return
        request.file.close()
        with self._lock:
            stats.failed += going.failed
            stats.writes += write and not going.failed
            stats.reads += not write and not going.failed
        going.finish()

    def _through_buffer(self, request: _Request, piece: Piece) -> bool:
        gpu = Raw(request.address + piece.start, piece.bytes, request.gpu)
        with self._buffer(piece.bytes) as address:
            host = Raw(address, piece.bytes, HOST)
            engine = default_engine()
            if request.file.write:
                engine.copy(host, gpu, request.stream).wait()
            direct = _move(request.file, piece, address)
            if not request.file.write:
                engine.copy(gpu, host, request.stream).wait()
        return direct

    @contextlib.contextmanager
    def _buffer(self, size: int) -> Iterator[int]:
        """The address of a pinned buffer for one piece. A thread has one at a time. The host pool
        keeps the buffers for later pieces, except one that a lost copy may still use."""
        memory, address = pinned_block(size)
        with self._lock:
            self._stats.buffer_bytes += size
        try:
            yield address
        finally:
            del memory
            with self._lock:
                self._stats.buffer_bytes -= size


def _is_over(error: RuntimeError) -> bool:
    """Whether threads take no task any more. If only a new thread was refused, an existing one
    takes the task later."""
    return "shutdown" in str(error)


def _by_gds(request: _Request, piece: Piece) -> bool:
    file = request.file.gds
    if file is None or not piece.whole:
        return False
    gpu = Raw(request.address + piece.start, piece.bytes, request.gpu)
    return file.move(gpu, piece.offset, request.stream, request.file.write)


def _opened(path: str | os.PathLike[str] | int, write: bool, direct: bool) -> _File:
    if isinstance(path, str | os.PathLike):
        name = text = os.fspath(path)
    elif (descriptor := arguments.whole(path)) is not None:
        # The file is opened again, so that flags and lifetime are the request's own.
        name = f"/proc/self/fd/{descriptor}"
        text = _named(name)
        _require_mode(descriptor, write, text)
    else:
        raise InvalidArgument(f"path {path!r}: a file's name, or the descriptor of an open file")
    # O_NONBLOCK: opening a pipe would wait for its other end.
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    flags |= (os.O_WRONLY | os.O_CREAT) if write else os.O_RDONLY
    try:
        cached = os.open(name, flags, 0o666)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or errno.EINVAL
        raise FileFailed(number, getattr(error, "strerror", None) or str(error), text) from None
    if stat.S_ISFIFO(os.fstat(cached).st_mode):
        os.close(cached)
        raise FileFailed(errno.ESPIPE, "a pipe has no offsets to read or write at", text)
    if not direct:
        return _File(text, cached, None, write)
    try:
        return _File(text, cached, os.open(name, flags & ~os.O_CREAT | os.O_DIRECT), write)
    except OSError:  # the file system has no direct I/O; stats() tells
        return _File(text, cached, None, write)


def _require_mode(descriptor: int, write: bool, text: str) -> None:
    """Raises FileFailed unless the descriptor is open for this mode. Opening the file again does
    not check that."""
    try:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, OverflowError, ValueError):
        raise FileFailed(errno.EBADF, f"descriptor {descriptor} is not open", text) from None
    if mode == (os.O_RDONLY if write else os.O_WRONLY):
        way = "writing" if write else "reading"
        raise FileFailed(errno.EBADF, f"the descriptor is not open for {way}", text)


def _named(name: str) -> str:
    try:
        return str(Path(name).readlink())
    except OSError:
        return name


def _move(file: _File, piece: Piece, address: int) -> bool:
    """Reads or writes a piece. Returns whether it went past the page cache. Raises the file
    system's OSError."""
    memory = memoryview((ctypes.c_char * piece.bytes).from_address(address)).cast("B")
    done = 0
    direct = file.direct is not None and piece.whole and address % ALIGNMENT == 0
    if direct:
        try:
            # Linux moves at most 2 GiB less a page in a call.
            while done < piece.bytes and done % ALIGNMENT == 0:
                moved = _request(file, file.direct, memory[done:], piece.offset + done)
                done += moved
                if moved == 0:
                    break
        except OSError as error:
            if error.errno != errno.EINVAL:  # larger blocks are needed, or none are allowed
                raise
            direct = done != 0
    while done < piece.bytes:  # the rest, at a file's end or after a short request
        moved = _request(file, file.cached, memory[done:], piece.offset + done)
        if moved == 0:
            size = os.fstat(file.cached).st_size
            raise FileFailed(
                errno.ENODATA,
                f"bytes {piece.offset} to {piece.offset + piece.bytes} were asked for, "
                f"but it has {size}",
                file.path,
            )
        done += moved
    return direct


def _request(file: _File, descriptor: int | None, memory: memoryview, offset: int) -> int:
    assert descriptor is not None
    call = os.pwritev if file.write else os.preadv
    return call(descriptor, [memory], offset)
