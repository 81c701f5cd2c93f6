"""Serves one connection of a peer of this node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from glake.errors import BadMessage, GlakeError, InvalidArgument, PeerLost
from glake.transfer.nodes import messages
from glake.transfer.nodes.carrier import Carrier, checksum, require_checksum
from glake.transfer.nodes.channel import Channel
from glake.transfer.nodes.exposed import Exposed
from glake.transfer.nodes.messages import (
    Ask,
    Done,
    Failed,
    Land,
    Release,
    Stage,
    Staged,
    Take,
    Told,
)

_MOST_AT_ONCE = 512  # requests of one connection that are under way


@dataclass
class _Lent:
    """A slot that a peer reads (Stage), or whose bytes wait for the peer's Land (Take)."""

    slot: int
    request: Stage | Take
    until: float


class Serving:
    """Answers a peer's requests until its connection ends. It waits for the peer only while a slot
    is lent to the peer, and at most `timeout` seconds.

    Args:
        channel: the connection, after its greeting.
        name: our engine's name of the peer.
        threads: do the requests that move bytes.
        find: returns the memory that is exposed by a name, or raises InvalidArgument.
        timeout: seconds for which a slot may be lent.
    """

    def __init__(
        self,
        channel: Channel,
        carrier: Carrier,
        name: str,
        threads: ThreadPoolExecutor,
        find: Callable[[str], Exposed],
        timeout: float,
    ) -> None:
        self._channel, self._carrier, self._name = channel, carrier, name
        self._threads, self._find, self._timeout = threads, find, timeout
        self._lent: dict[int, _Lent] = {}
        self._under_way = 0
        self._changed = threading.Condition()

    def run(self) -> None:
        """Runs until the connection ends. Then all lent slots have been given back.

        Raises:
            PeerLost, PeerRefused, BadMessage: the reason why the connection ended.
        """
        try:
            while True:
                patience = 1.0 if self._lent else None
                request = self._channel.receive(messages.REQUESTS, patience)
                if request is not None:
                    self._begin(request)
                self._require_answers()
        finally:
            self._channel.close()
            with self._changed:
                self._changed.wait_for(lambda: self._under_way == 0)
                lent, self._lent = self._lent, {}
            for each in lent.values():
                self._carrier.serving.give_back(each.slot)

    def _begin(self, request: Any) -> None:
        with self._changed:
            self._under_way += 1
            if self._under_way > _MOST_AT_ONCE:
                self._under_way -= 1
                raise BadMessage(f"more than {_MOST_AT_ONCE} requests at once")
        try:
            if isinstance(request, Ask | Release):
                self._answer(request)
            else:
                self._threads.submit(self._answer, request)
        except RuntimeError as error:
            if "shutdown" not in str(error):
                return  # no new thread; an existing one takes the request later
            self._over()
            raise PeerLost(f"this node ends: {error}") from None

    def _over(self) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def _require_answers(self) -> None:
        now = time.monotonic()
        with self._changed:
            late = any(each.until < now for each in self._lent.values())
        if late:
            raise PeerLost(f"the peer has kept a buffer for more than {self._timeout:g} s")

    def _answer(self, request: Any) -> None:
        try:
            answer = self._done(request)
        except InvalidArgument as error:
            answer = Failed(request.id, "asked", messages.printable(error))
        except Exception as error:
            said = messages.printable(f"{type(error).__name__}: {error}")
            answer = Failed(request.id, "failed", said)
        try:
            self._channel.send(answer)
        except GlakeError:
            pass  # run() sees the end of the connection as well
        finally:
            self._over()

    def _done(self, request: Any) -> Any:
        if isinstance(request, Ask):
            exposed = self._find(request.name)
            return Told(request.id, exposed.memory.bytes, exposed.writable)
        if isinstance(request, Stage):
            return self._stage(request)
        if isinstance(request, Take):
            return self._take(request)
        if isinstance(request, Land):
            return self._land(request)
        lent = self._ended(request.stage, Stage)
        self._carrier.serving.give_back(lent.slot)
        self._carrier.counters.add(network_sent_bytes=lent.request.bytes)
        return Done(request.id)

    def _stage(self, request: Stage) -> Staged:
        exposed = self._find(request.name)
        slot = self._slot(request)
        try:
            address = exposed.begin(request.offset, request.bytes, write=False)
            try:
                self._carrier.copy(
                    exposed.gpu, slot, address, request.bytes, checked=request.checked
                )
            finally:
                exposed.end()
            crc = checksum(slot, request.bytes) if request.checked else -1
            self._lend(slot, request)
        except BaseException:
            self._carrier.serving.give_back(slot)
            raise
        return Staged(request.id, slot, crc)

    def _take(self, request: Take) -> Done:
        exposed = self._find(request.name)
        exposed.begin(request.offset, request.bytes, write=True)  # raises before bytes are sent
        exposed.end()
        slots, slot = self._carrier.serving, self._slot(request)
        try:
            self._carrier.fetch(
                slots,
                slot,
                self._name,
                request.address,
                request.bytes,
                self._timeout,
                lambda: not self._channel.is_open,
            )
            require_checksum(slot, request.bytes, request.checksum)
            self._lend(slot, request)
        except BaseException:
            slots.give_back(slot)
            raise
        return Done(request.id)

    def _land(self, request: Land) -> Done:
        lent = self._ended(request.take, Take)
        take = lent.request
        assert isinstance(take, Take)
        try:
            exposed = self._find(take.name)
            address = exposed.begin(take.offset, take.bytes, write=True)
            try:
                checked = take.checksum >= 0
                self._carrier.copy(exposed.gpu, address, lent.slot, take.bytes, checked=checked)
            finally:
                exposed.end()
        finally:
            self._carrier.serving.give_back(lent.slot)
        return Done(request.id)

    def _slot(self, request: Stage | Take) -> int:
        if request.bytes > self._carrier.block:
            raise InvalidArgument(
                f"a piece of {request.bytes} bytes: at most {self._carrier.block} of this node's"
            )
        return self._carrier.serving.take(self._timeout)

    def _lend(self, slot: int, request: Stage | Take) -> None:
        until = time.monotonic() + self._timeout
        with self._changed:
            if request.id in self._lent:
                raise InvalidArgument(f"request {request.id} is under way already")
            self._lent[request.id] = _Lent(slot, request, until)

    def _ended(self, number: int, kind: type[Any]) -> _Lent:
        with self._changed:
            lent = self._lent.get(number)
            if lent is None or not isinstance(lent.request, kind):
                raise InvalidArgument(f"no {kind.kind} {number} is under way")
            return self._lent.pop(number)
