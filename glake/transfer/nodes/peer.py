"""Another node, which this one reads and writes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glake import arguments
from glake.errors import GlakeError, InvalidArgument, PeerFailed, PeerLost
from glake.transfer import flat, handle
from glake.transfer.array_memory import ArrayMemory, memory_of
from glake.transfer.engine import written
from glake.transfer.nodes import messages
from glake.transfer.nodes.carrier import RETRIES, Carrier, checksum, require_checksum
from glake.transfer.nodes.channel import Channel
from glake.transfer.nodes.handle import NodeTransfer
from glake.transfer.nodes.messages import Ask, Failed, Land, Release, Stage, Take, Told

if TYPE_CHECKING:
    from glake.typing import Array

_MOST_PIECES = 1 << 20


@dataclass
class _Going:
    """A transfer under way."""

    name: str
    offset: int  # in the exposed memory
    address: int
    gpu: int
    stream: Any
    checked: bool
    write: bool
    handle: NodeTransfer


class Peer:
    """A connection to another node, made by Node.connect(). As a context manager it closes at the
    end. Several threads may use it, and several transfers may go at once.

    Attributes:
        address: the address of the other node.
    """

    def __init__(
        self,
        address: str,
        channel: Channel,
        carrier: Carrier,
        name: str,
        block: int,
        threads: ThreadPoolExecutor,
        timeout: float,
    ) -> None:
        self.address = address
        self._channel, self._carrier, self._name = channel, carrier, name
        self._block, self._threads, self._timeout = block, threads, timeout
        self._family = handle.family()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._pieces = 0
        self._closed = False
        self._lost: str | None = None
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        """Its address, and whether it can be reached."""
        state = "closed" if self._closed else f"lost: {self._lost}" if self._lost else "connected"
        return f"<Peer {self.address}, {state}>"

    def size(self, name: str) -> int:
        """The size in bytes of the memory that the other node exposes by `name`.

        Args:
            name: as it was exposed.

        Raises:
            InvalidArgument: it exposes nothing by this name.
            PeerLost: the other node has ended, or does not answer.
        """
        return self._told(name).bytes

    def read(
        self,
        name: str,
        dst: Array,
        offset: int = 0,
        nbytes: int | None = None,
        checksum: bool = False,
    ) -> NodeTransfer:
        """Starts reading memory that the other node exposes by `name` into memory here.

        Args:
            name: as it was exposed.
            dst: contiguous: a tensor, an array, a buffer object or `Raw`, of the host or a GPU.
                GPU memory is written in the order of the current stream. The memory is filled when
                the handle is done.
            offset: the first byte to read.
            nbytes: how many bytes, into the first ones of `dst`; None: as many as `dst` has.
            checksum: compare the checksums of each piece at both ends of each leg. A piece that
                differs is read again.

        Raises:
            InvalidArgument: no such name, a range beyond the end of the exposed memory or of `dst`,
                memory with gaps or read-only.
            PeerLost: the other node has ended, or does not answer.
        """
        memory = memory_of(dst, write=True)
        going = self._start(name, memory, offset, nbytes, checksum, write=False)
        written(dst)
        return going

    def write(
        self,
        name: str,
        src: Array,
        offset: int = 0,
        nbytes: int | None = None,
        checksum: bool = False,
    ) -> NodeTransfer:
        """Starts writing memory of this node to writable memory that the other exposes by `name`.

        Args:
            name: as it was exposed.
            src: contiguous, as read() takes it. GPU memory is read in the order of the current
                stream. It must stay as it is until the handle is done.
            offset: the first byte to write.
            nbytes: how many bytes, the first ones of `src`; None: all.
            checksum: as of read().

        Raises:
            InvalidArgument: no such name, memory that is not writable, a range beyond the end of
                the exposed memory or of `src`, memory with gaps.
            PeerLost: the other node has ended, or does not answer.
        """
        return self._start(name, memory_of(src), offset, nbytes, checksum, write=True)

    def close(self) -> None:
        """Waits for the transfers under way, and then ends the connection. A second call, or one
        in a forked child, does nothing."""
        if self._family is not handle.family():
            return
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._pieces == 0)
        self._channel.close()

    def __enter__(self) -> Peer:
        """The peer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def listen(self) -> None:
        """Passes answers to the threads that wait for them, until the connection ends. A thread of
        the node runs this."""
        reason = "closed here"
        try:
            while True:
                answer = self._channel.receive(messages.ANSWERS)
                asked = self._asked.pop(answer.id, None)
                if asked is not None:
                    asked.set_result(answer)
        except GlakeError as error:
            reason = str(error)
        finally:
            with self._changed:
                self._lost = reason
                left, self._asked = self._asked, {}
            for asked in left.values():
                asked.set_exception(PeerLost(f"{self.address}: {reason}"))
            with self._changed:  # returns only when no piece uses the connection
                self._changed.wait_for(lambda: self._pieces == 0)

    @property
    def was_closed(self) -> bool:
        """Whether the connection ended because this side closed it."""
        return self._closed

    def _told(self, name: str) -> Told:
        handle.require_own(self._family)
        known = isinstance(name, str) and name.isprintable() and 0 < len(name) <= messages.MOST_NAME
        if not known:
            raise InvalidArgument(
                f"name {name!r}: a printable text of 1 to {messages.MOST_NAME} characters"
            )
        told = self._ask(lambda number: Ask(number, name))
        if not isinstance(told, Told):
            raise PeerFailed(f"{self.address} answers {told.kind} to a question for a size")
        return told

    def _start(
        self,
        name: str,
        memory: ArrayMemory,
        offset: int,
        nbytes: int | None,
        checked: bool,
        write: bool,
    ) -> NodeTransfer:
        arguments.flag("checksum", checked)
        flat.require(memory)
        at, size = arguments.whole(offset), memory.bytes
        if nbytes is not None:
            wanted = arguments.whole(nbytes)
            if wanted is None or not 0 <= wanted <= size:
                raise InvalidArgument(f"nbytes {nbytes!r}: 0 to the {size} that {memory} has")
            size = wanted
        told = self._told(name)
        if at is None or at < 0 or at + size > told.bytes:
            raise InvalidArgument(
                f"{size} bytes from {offset!r} on of {name!r}, of which {self.address} exposes "
                f"{told.bytes}"
            )
        if write and not told.writable:
            raise InvalidArgument(f"{self.address} has not exposed {name!r} as writable")
        gpu, stream = flat.gpu_of(memory), None
        stream = flat.stream_of(memory, gpu)
        return self._submit(name, at, size, memory, gpu, stream, checked, write)

    def _submit(
        self,
        name: str,
        at: int,
        size: int,
        memory: ArrayMemory,
        gpu: int,
        stream: Any,
        checked: bool,
        write: bool,
    ) -> NodeTransfer:
        starts = range(0, size, self._block)
        if len(starts) > _MOST_PIECES:
            raise InvalidArgument(f"{size} bytes: at most {_MOST_PIECES} of {self._block} at once")
        done = NodeTransfer(f"{name!r} of {self.address}", size, len(starts), memory)
        going = _Going(name, at, memory.address, gpu, stream, checked, write, done)
        with self._changed:
            if self._closed or self._lost is not None:
                raise PeerLost(f"{self.address}: {self._lost or 'closed here'}: connect again")
            self._pieces += len(starts)
        self._carrier.counters.add(under_way=1 if starts else 0)
        for start in starts:
            piece = (start, min(self._block, size - start))
            try:
                self._threads.submit(self._carry, going, *piece)
            except RuntimeError as error:
                if "shutdown" not in str(error):
                    continue  # no new thread; an existing one takes the piece later
                self._over(going, 0, PeerLost(f"this node ends: {error}"))
        return done

    def _carry(self, going: _Going, start: int, size: int) -> None:
        """Carries one piece, on a thread. Pieces behind a failed one are left out."""
        error: BaseException | None = None
        if not going.handle.failed:
            try:
                slot = self._carrier.fetching.take(self._timeout)
                try:
                    (self._put if going.write else self._get)(going, start, size, slot)
                finally:
                    self._carrier.fetching.give_back(slot)
            except BaseException as failure:
                error = failure
                if isinstance(failure, PeerLost):
                    self._channel.close(str(failure))  # a later request would wait as long
        self._over(going, 0 if going.handle.failed else size, error)

    def _over(self, going: _Going, size: int, error: BaseException | None) -> None:
        last = going.handle.settle(0 if error is not None else size, error)
        if last:
            failed = going.handle.failed
            self._carrier.counters.add(
                under_way=-1,
                failed=int(failed),
                writes=int(going.write and not failed),
                reads=int(not going.write and not failed),
            )
            going.handle.finish()
        with self._changed:
            self._pieces -= 1
            self._changed.notify_all()

    def _get(self, going: _Going, start: int, size: int, slot: int) -> None:
        self._tried(lambda: self._fetched(going, start, size, slot))
        self._carrier.copy(
            going.gpu, going.address + start, slot, size, going.stream, going.checked
        )

    def _fetched(self, going: _Going, start: int, size: int, slot: int) -> None:
        """Reads the peer's buffer into a slot. The slot has the right bytes only if the peer then
        confirms that the buffer was lent to us all the time."""
        staged = self._ask(
            lambda number: Stage(number, going.name, going.offset + start, size, going.checked)
        )
        if not isinstance(staged, messages.Staged):
            raise PeerFailed(f"{self.address} answers {staged.kind} to stage")
        try:
            self._carrier.fetch(
                self._carrier.fetching,
                slot,
                self._name,
                staged.address,
                size,
                self._timeout,
                lambda: not self._channel.is_open,
            )
        except PeerFailed:
            self._ask(lambda number: Release(number, staged.id))
            raise
        self._ask(lambda number: Release(number, staged.id))
        require_checksum(slot, size, staged.checksum)

    def _put(self, going: _Going, start: int, size: int, slot: int) -> None:
        self._carrier.copy(
            going.gpu, slot, going.address + start, size, going.stream, going.checked
        )
        crc = checksum(slot, size) if going.checked else -1
        take = 0

        def taken() -> None:
            nonlocal take
            take = self._ask(
                lambda number: Take(number, going.name, going.offset + start, size, slot, crc)
            ).id

        self._tried(taken)
        self._carrier.counters.add(network_sent_bytes=size)
        self._ask(lambda number: Land(number, take))

    def _tried(self, step: Callable[[], None]) -> None:
        """Does a step, and repeats it if it failed. It may be repeated because it writes only to
        buffers."""
        for left in reversed(range(RETRIES + 1)):
            try:
                return step()
            except PeerFailed as error:
                if not left or not self._channel.is_open:
                    said = str(error).removeprefix(f"{self.address}: ")
                    raise PeerFailed(f"{self.address}: {said}") from None
                self._carrier.counters.add(retries=1)

    def _ask(self, make: Callable[[int], Any]) -> Any:
        """The answer to a request. If none comes in time, ends the connection and raises PeerLost.
        The peer may still read a buffer that was lent to it."""
        number, asked = next(self._numbers), Future[Any]()
        with self._changed:
            if self._lost is not None:
                raise PeerLost(f"{self.address}: {self._lost}: connect again")
            self._asked[number] = asked
        try:
            self._channel.send(make(number))
            # The peer may itself wait `timeout` seconds for a buffer, and as long for its own read.
            answer = asked.result(3 * self._timeout)
        except NotYet:
            why = f"the other node has not answered for {3 * self._timeout:g} s"
            self._channel.close(why)
            raise PeerLost(f"{self.address}: {why}") from None
        finally:
            self._asked.pop(number, None)
        if isinstance(answer, Failed):
            kind = InvalidArgument if answer.why == "asked" else PeerFailed
            raise kind(f"{self.address}: {answer.reason}")
        return answer
