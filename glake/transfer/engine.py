"""The process's transfer engine, and copies through it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glake import _C, arguments
from glake.errors import GlakeError, InvalidArgument, InvalidDevice, TransferClosed
from glake.transfer import completion_watcher, handle, intercepted, registration, strided
from glake.transfer import topology as topologies
from glake.transfer.array_memory import ASK, ArrayMemory, is_tensor, memory_of
from glake.transfer.handle import Transfer, stream_of
from glake.transfer.relay import modes
from glake.transfer.topology import node as nodes
from glake.transfer.topology.node import Node

if TYPE_CHECKING:
    import numpy as np

    from glake.transfer.relay.client import RelayClient
    from glake.typing import Array, BlockArray, BlockIndex, CopyStream, EngineStats, LendingStats

Streams = list[tuple[int, int]]
_Request = tuple[Any, int, int, Streams, int]  # parts, destination, source, streams, flags
UNORDERED: Literal["unordered"] = "unordered"

_DIRECT, _RELAYED, _TRACKED, _CHECKSUM, _CHECKED = 1, 2, 4, 8, 16  # include/glake/glake.h
_CHECKED_DST, _CHECKED_SRC = 32, 64

_lock = threading.RLock()
_open: Engine | None = None


class Engine:
    """Carries copies over the paths of one topology.

    A process has one engine at a time. The first copy opens it over the machine's own topology,
    unless one is open. `with Engine(...)` closes it at the end.

    Args:
        topology: a preset's name, a platforms file, a Topology, or None for that of GLAKE_DRIVER.
        relays: GPUs over which copies may relay, besides those that they are from or to. "all": all
            visible ones. "lent": those that the relay service lends (docs/relayd.md). "own": only
            those of this process's copies. None: as GLAKE_RELAYS says. If that is not set, it means
            "lent" if a launcher (torchrun, mpirun, srun) says that this is one of several
            processes, else "all".

    Raises:
        InvalidArgument: another engine is open, or an argument is wrong.
        InvalidDevice: "lent", and CUDA_VISIBLE_DEVICES shows other GPUs than the driver has.
        InvalidOption: the platform cannot be used.
        DriverAbsent: there is no driver.
        DriverError: the driver refused a call.
    """

    def __init__(
        self,
        topology: topologies.Topology | str | Path | None = None,
        relays: str | None = None,
    ) -> None:
        """Opens the engine."""
        global _open
        self.relays = modes.chosen(relays)
        self._node = _node(topology) if self.relays == "lent" else None
        if topology is None and self._node is not None:
            self.topology = self._node.renumbered()
        else:
            self.topology = _topology(topology)
        self._lender: RelayClient | None = None
        self._process = os.getpid()
        with _lock:
            if _open is not None:
                raise InvalidArgument(
                    f"an engine over {_open.topology.name} is open: close it first (a process has "
                    "one; the first copy opens it)"
                )
            intercepted.take_over()
            _C.transfer_open(self.topology.text(), self.topology.name)
            try:
                if self.relays != "all":
                    _C.transfer_lend(0, [])
                elif relays is None and topology is None:
                    self._spare_others()
                self._borrow()
            except BaseException:  # the caller gets no engine that could be closed
                intercepted.wait()
                _C.transfer_close()
                raise
            _open = self
        atexit.register(self._exit)

    def close(self) -> None:
        """Ends the engine's threads and unpins host memory. Copies under way are cancelled. A
        second call does nothing. Raises BusyTimeout or DriverError if a stream holds the engine up.
        Then close() may be called again."""
        global _open
        with _lock:
            if _open is not self:
                return
            if self._lender is not None:
                self._lender.stop()
                self._lender = None
            try:
                with completion_watcher.engine_ends():
                    for transfer in handle.live():
                        transfer.close()
                    intercepted.wait()
                    _C.transfer_close()
            except BaseException:
                self._borrow()
                raise
            registration.forget()
            _open = None
        atexit.unregister(self._exit)

    def _borrow(self) -> None:
        """Begins to use what other processes of the node lend, if `relays` says so."""
        gpus = _C.device_count()
        if self._node is None or self._node.topology.platform.gpus < 2:
            return
        if len(self._node.seen) != gpus:
            raise InvalidDevice(
                f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} shows "
                f"{len(self._node.seen)} of the node's GPUs, the driver has {gpus}: set it before "
                "the process starts"
            )
        from glake.transfer.relay.client import RelayClient

        self._lender = RelayClient(self._node, modes.own_gpus(gpus))

    @property
    def shares_host_memory(self) -> bool:
        """Whether copies go over GPUs that this process does not see. If so, `pinned()` gives
        memory that the relay service reaches."""
        return self._lender is not None and self._lender.served

    def _spare_others(self) -> None:
        """Excludes from relaying the GPUs on which other processes compute. Does nothing if the
        user said which GPUs may relay."""
        if modes.told() or not self.topology.source.startswith("this machine"):
            return
        used = nodes.used_by_others(os.environ)
        if not used:
            return
        free = [gpu for gpu in range(_C.device_count()) if gpu not in used]
        _C.transfer_lend(sum(1 << gpu for gpu in free), [])
        named = ", ".join(f"cuda:{gpu} (process {process})" for gpu, process in used.items())
        warnings.warn(
            f"glake: other processes use {named}: copies are not relayed over those. "
            "GLAKE_RELAYS=all relays over every GPU, lent shares them by a service",
            RuntimeWarning,
            stacklevel=3,
        )

    def _exit(self) -> None:
        # This runs before the interpreter and the driver end. Nobody could be told of an error
        # here.
        if os.getpid() == self._process:
            with contextlib.suppress(GlakeError):
                self.close()

    @property
    def is_open(self) -> bool:
        """Whether this is the process's engine at present."""
        return _open is self

    def __enter__(self) -> Engine:
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def stats(self) -> EngineStats:
        """What the engine has done so far.

        Returns:
            Copies and bytes; the bytes, chunks and state of every path; the GPUs that may relay;
            under "lending", what the relay service lends.

        Raises:
            TransferClosed: no engine is open.
        """
        lender = self._lender
        lending: LendingStats = {"mode": self.relays}
        if lender is not None:
            lending = {**lender.stats(), "mode": self.relays}
        found = _C.transfer_stats()
        if lending.get("hidden"):  # the core lists only GPUs that the process sees
            found["relays"] = [*found["relays"], *lending["hidden"]]
        return {**found, "lending": lending}

    def copy(
        self,
        dst: Array,
        src: Array,
        stream: CopyStream = None,
        direct: bool = False,
        checksum: bool = False,
    ) -> Transfer:
        """Copies `src` into `dst`. The destination comes first, as in memcpy.

        Args:
            dst: the destination: a tensor, an array, a DLPack or buffer object, or `Raw` memory.
                Either it has the dtype, shape and item size of `src`, in any strides. Or both are
                contiguous and have equally many bytes.
            src: the source. If it consists of many short pieces (a transposed array), it is first
                made contiguous on its own device.
            stream: the copy begins after the work on it, and later work there waits for the copy.
                None: the current streams of the GPU arrays' frameworks, of both GPUs if there are
                    two; a copy between host arrays begins at once. UNORDERED: the copy begins at
                    once. A host array is ready, or free to be changed, only when the handle is
                    done.
            direct: make one plain copy, for comparison.
            checksum: read both ends of each chunk again and compare them. A chunk that changed on
                its way is sent again. This takes the time of reading the GPU's end back.

        Returns:
            A handle. CopyFailed is raised by its wait().

        Raises:
            InvalidArgument: memory that does not match, overlaps or is read-only, or no stream.
            InvalidDevice: no such GPU.
            InvalidPointer: memory that is not there.
            RegionPaused: memory of a paused region.
            TransferClosed: this engine is closed.
        """
        to, of = memory_of(dst, write=True), memory_of(src)
        to, of, parts, made = _planned(to, of)
        streams = _ordering(stream, to, of, made)
        flags = _DIRECT if arguments.flag("direct", direct) else 0
        flags |= _CHECKSUM if arguments.flag("checksum", checksum) else 0
        flags |= _checks(to, of)
        ids = self._ids(parts, to.device, of.device, streams, flags)
        if to.kind == "tensor":
            written(dst)
        return Transfer(ids, parts.bytes, _owners(to, of), bool(streams), made)

    def copy_batch(
        self, pairs: Iterable[tuple[Array, Array]], stream: CopyStream = None
    ) -> Transfer:
        """Copies each (dst, src) as copy() does. Pairs between the same places are one transfer.

        Pairs of different streams are different transfers. The transfers are planned together if
        streams order them and all host memory is pinned. The pairs have no order among themselves.
        So none may write what another reads or writes.

        Args:
            pairs: (dst, src) of each copy.
            stream: as of copy().

        Raises:
            InvalidArgument: no pairs, or what copy() refuses.
            GlakeError: what copy() raises. The text names the pair, or its two places. If the
                driver refuses one transfer, those before it have begun: `error.begun` is their
                handle, and their memory must stay until it is done.
        """
        given: list[tuple[Any, ArrayMemory, ArrayMemory]] = []
        for number, (dst, src) in enumerate(_pairs(pairs)):
            try:
                given.append((dst, memory_of(dst, write=True), memory_of(src)))
            except GlakeError as error:
                _name_pair(error, number)
                raise
        groups: dict[tuple[Any, ...], list[strided.Parts]] = {}
        checks: dict[tuple[Any, ...], int] = {}  # flags for memory without an owner
        keep: list[Any] = []
        any_made = False
        for number, (_, to, of) in enumerate(given):
            try:
                to, of, parts, made = _planned(to, of)
                streams = tuple(_ordering(stream, to, of, made))
            except GlakeError as error:
                _name_pair(error, number)
                raise
            any_made = any_made or made
            keep.append(_owners(to, of))
            if parts.count:
                group = (self._place(to), self._place(of), streams)
                groups.setdefault(group, []).append(parts)
                checks[group] = checks.get(group, 0) | _checks(to, of)
        ids: list[int] = []
        requests: list[_Request] = []
        sizes: list[int] = []
        for group, several in groups.items():
            to_gpu, of_gpu, ordered = group
            parts = strided.joined(several)
            requests.append(
                (parts.numbers, to_gpu, of_gpu, list(ordered), checks[group] | _TRACKED)
            )
            sizes.append(parts.bytes)
        self._require_open()
        ordered_all = all(ordered for *_, ordered in groups)
        try:
            _C.copy_start_all(requests, ids)
        except BaseException as error:
            started = {each: size for each, size in zip(ids, sizes, strict=False) if each != 0}
            if started:  # their memory is kept until they are done
                size = sum(started.values())
                begun = Transfer(tuple(started), size, keep, ordered_all, any_made)
                _all_written(given)
                if isinstance(error, GlakeError):
                    error.begun = begun
            raise
        transfer = Transfer(ids, sum(sizes), keep, ordered_all, any_made)
        _all_written(given)
        return transfer

    def gather(
        self, dst: Array, blocks: BlockArray, index: BlockIndex = None, stream: CopyStream = None
    ) -> Transfer:
        """Copies blocks, one after another, into the contiguous `dst`.

        Args:
            dst: contiguous, of exactly the blocks' bytes.
            blocks: an array, whose blocks lie along its first dimension, or `Blocks`.
            index: numbers of the blocks, in order; None: all.
            stream: as of copy().

        Raises:
            InvalidArgument: a block that is not there, gaps, or sizes that do not match.
            GlakeError: what copy() raises.
        """
        flat = _whole(memory_of(dst, write=True))
        memory, addresses, size = strided.block_addresses(blocks, index)
        parts = strided.rows_of(_lined_up(flat, len(addresses), size), addresses, size)
        return self._blocks(dst, parts, flat, memory, stream)

    def scatter(
        self, blocks: BlockArray, src: Array, index: BlockIndex = None, stream: CopyStream = None
    ) -> Transfer:
        """Copies the contiguous `src` into blocks, one part after another. It is the reverse of
        gather().

        Args:
            blocks: an array, whose blocks lie along its first dimension, or `Blocks`.
            src: contiguous, of exactly the blocks' bytes.
            index: numbers of the blocks, in order and each once; None: all.
            stream: as of copy().

        Raises:
            InvalidArgument: a block that is not there or named twice, gaps, or sizes that do not
                match.
            GlakeError: what copy() raises.
        """
        import numpy as np

        flat = _whole(memory_of(src))
        memory, addresses, size = strided.block_addresses(blocks, index, write=True)
        parts = strided.rows_of(addresses, _lined_up(flat, len(addresses), size), size)
        try:
            return self._blocks(blocks, parts, memory, flat, stream)
        except InvalidArgument:  # overlapping parts, among others
            if len(np.unique(addresses)) == len(addresses):
                raise
        raise InvalidArgument("scatter: the index names a block twice: name each block once")

    def copy_rows(self, rows: np.typing.NDArray[np.uint64], stream: CopyStream = None) -> Transfer:
        """Copies many ranges between two places, given as addresses, as one transfer.

        Args:
            rows: a NumPy array of shape (n, 3), dtype uint64: destination, source, bytes. All
                destinations are in one place (a GPU's memory, or the host's), and all sources are
                in one place. No row may write what another reads or writes. The memory must stay
                until the copy is done.
            stream: as of copy(); None: it begins at once.

        Raises:
            InvalidArgument: the array has another shape or dtype.
            InvalidPointer: memory that is not there.
            GlakeError: what copy() raises.
        """
        shape: tuple[int, ...] = tuple(getattr(rows, "shape", ()))
        kind = str(getattr(rows, "dtype", ""))
        if len(shape) != 2 or shape[1] != 3 or kind != "uint64":
            raise InvalidArgument(
                f"rows of shape {shape} and dtype {kind or type(rows).__name__}: an array "
                "of (n, 3) uint64, destination, source and bytes in each row"
            )
        import numpy as np

        rows = np.ascontiguousarray(rows[rows[:, 2] > 0])
        parts = strided.Parts(rows, len(rows), int(rows[:, 2].sum()))
        if parts.count == 0:
            return Transfer((), 0, None)
        to, of = (_C.place_of(int(address))[0] for address in rows[0, :2])
        gpu = to if to >= 0 else of
        streams = [stream_of(stream, gpu)] if stream not in (None, UNORDERED) else []
        return Transfer(
            self._ids(parts, to, of, streams, _CHECKED), parts.bytes, None, bool(streams)
        )

    def _blocks(
        self, dst: Any, parts: strided.Parts, to: ArrayMemory, of: ArrayMemory, stream: CopyStream
    ) -> Transfer:
        streams = _ordering(stream, to, of)
        ids = self._ids(parts, to.device, of.device, streams, _checks(to, of))
        written(dst)
        return Transfer(ids, parts.bytes, _owners(to, of), bool(streams))

    def _place(self, end: ArrayMemory) -> int:
        return end.device if end.device != ASK else _C.place_of(end.address)[0]

    def _require_open(self) -> None:
        if _open is not self:
            raise TransferClosed("this engine is closed: open another, or use glake.transfer.copy")

    def _ids(
        self, parts: strided.Parts, dst: int, src: int, streams: Streams, flags: int
    ) -> list[int]:
        self._require_open()
        if parts.count == 0:
            return []
        return [_C.copy_start(parts.numbers, dst, src, streams, flags | _TRACKED)]


def _planned(
    to: ArrayMemory, of: ArrayMemory
) -> tuple[ArrayMemory, ArrayMemory, strided.Parts, bool]:
    """The two arrays, the copy's parts, and whether the source was made contiguous for it."""
    # This comes first to make small copies fast: both are known to have no gaps.
    size = to._bytes if to._dense and of._dense else None
    alike = to.dtype == of.dtype or not (to.typed and of.typed)
    if alike and size is not None and size == of._bytes:
        return to, of, strided.one_part(to.address, of.address, size), False
    if strided.check_fit(to, of):
        return to, of, strided.one_part(to.address, of.address, of.bytes), False
    layout = strided.layout_of(to, of)
    dense = strided.compacted(to, of) if layout.short else None
    if dense is not None:
        to, of = dense
        return to, of, strided.one_part(to.address, of.address, of.bytes), True
    return to, of, strided.parts_of(to, of, layout), False


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    if not isinstance(given, Iterable):
        raise InvalidArgument(
            f"copy_batch takes (dst, src) pairs, such as [(a, b), (c, d)], not a "
            f"{type(given).__name__}"
        )
    pairs = list(given)
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            what = f"{len(pair)} of them" if isinstance(pair, tuple | list) else type(pair).__name__
            raise InvalidArgument(
                f"copy_batch: number {number} is no (dst, src) pair of two arrays, but {what}"
            )
    return pairs


def _name_pair(error: GlakeError, number: int) -> None:
    """Makes the error's text say which pair of a batch it is about."""
    error.args = (f"copy_batch: number {number}: {error}",)


def _checks(to: ArrayMemory, of: ArrayMemory) -> int:
    """The flags for memory without an owner: `Raw`, `Blocks`."""
    return (_CHECKED_DST if to.owner is None else 0) | (_CHECKED_SRC if of.owner is None else 0)


def _owners(to: ArrayMemory, of: ArrayMemory) -> Any:
    return None if to.owner is None and of.owner is None else (to.owner, of.owner)


def _whole(found: ArrayMemory) -> ArrayMemory:
    if not found.contiguous:
        raise InvalidArgument(f"{found} is not C-contiguous: the side without blocks must be")
    return found


def _lined_up(flat: ArrayMemory, count: int, size: int) -> Any:
    import numpy as np

    if flat.bytes != count * size:
        raise InvalidArgument(
            f"{count} blocks of {size} bytes are {count * size} bytes, {flat} holds {flat.bytes}"
        )
    return flat.address + np.arange(count) * size


def written(dst: Any) -> None:
    """Tells autograd that the tensor was written. autograd then refuses to use it as a saved
    tensor."""
    if is_tensor(dst) and not dst.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(dst)


def _all_written(pairs: list[tuple[Any, ArrayMemory, ArrayMemory]]) -> None:
    for dst, _, _ in pairs:
        written(dst)


def _ordering(
    stream: CopyStream, dst: ArrayMemory, src: ArrayMemory, made: bool = False
) -> Streams:
    """The streams of a copy. `made`: the source was just made contiguous on its framework's own
    stream."""
    found: Streams = []
    ends: tuple[ArrayMemory, ...] = (src, dst)
    if isinstance(stream, str):
        if stream != UNORDERED:
            raise InvalidArgument(f"{stream!r} is no stream: pass a stream, None or UNORDERED")
        ends = (src,) if made else ()
    elif stream is not None:
        gpus = [end.device for end in ends if end.device >= 0]
        found.append(stream_of(stream, gpus[0] if gpus else None))
        ends = (src,) if made else ()
    for end in ends:
        if end.stream is None:
            continue
        gpu = end.device if end.device >= 0 else _C.place_of(end.address)[0]
        if gpu < 0:
            raise InvalidArgument(
                f"{end} at {end.address:#x} names stream {end.stream}, and is no memory of a GPU"
            )
        if (gpu, end.stream) not in found:
            found.append((gpu, end.stream))
    return found


def _topology(given: topologies.Topology | str | Path | None) -> topologies.Topology:
    if given is None:
        _C.device_count()  # opens the driver, which an option given in code may choose
        return topologies.current()
    if isinstance(given, topologies.Topology):
        return given
    if not isinstance(given, str | Path):
        raise InvalidArgument(
            f"topology {given!r}: take a preset's name, a platforms file, a Topology or None"
        )
    if isinstance(given, Path) or "/" in given or given.endswith(".json"):
        return topologies.from_file(given)
    return topologies.from_preset(given)


def _node(given: topologies.Topology | str | Path | None) -> Node:
    seen = _C.device_count()
    if given is None:
        return nodes.current()
    topology = _topology(given)  # of the GPUs that the process sees
    return Node(topology, tuple(range(min(seen, topology.platform.gpus))))


def default_engine() -> Engine:
    """The process's engine. If there is none, one is opened over the machine's own topology.

    Raises:
        GlakeError: as of Engine.
    """
    return _open if _open is not None else open_over(None)


def open_over(topology: topologies.Topology | str | Path | None) -> Engine:
    """The process's engine. If there is none, one is opened over `topology`, which Engine takes."""
    with _lock:
        return _open if _open is not None else Engine(topology)


def open_engine() -> Engine | None:
    """The process's engine if one is open, else None."""
    return _open


def _forget() -> None:
    # The parent's engine does not belong to the child. Calls in the child that use the driver raise
    # Forked.
    global _open, _lock
    _open, _lock = None, threading.RLock()


os.register_at_fork(after_in_child=_forget)
