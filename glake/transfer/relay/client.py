"""The client of the relay service: a thread that sends this process's demands and applies the
grants.

While the service does not answer, copies go over this process's own GPUs only.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from glake import _C
from glake.errors import GlakeError, RelayRefused, RelayUnavailable
from glake.transfer.relay import directory, protocol, starting
from glake.transfer.relay.directory import Files
from glake.transfer.relay.numbers import Numbers
from glake.transfer.relay.protocol import Demands, Grant, Hello, Refused
from glake.transfer.topology.node import Node

if TYPE_CHECKING:
    from glake.typing import Lent

Ends = tuple[int, int, int, int]

# Seconds for which an ended demand is kept, because the next copy is often like the last one.
LINGER = 0.02
REST = 0.002  # seconds between two looks for changes, so that short copies do not cause many
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0  # seconds between attempts: each wait doubles
_PIECE = 1 << 16
_clients: weakref.WeakSet[RelayClient] = weakref.WeakSet()


class RelayClient:
    """The client for the process's engine, which is open over `topology`.

    Args:
        node: all of the node's GPUs, as every client of the service has them.
        gpus: the GPUs, by this process's numbers, that count as its own until it copies.
        idle: the seconds for which a service that we start stays without clients.
    """

    def __init__(self, node: Node, gpus: tuple[int, ...], idle: float = starting.IDLE) -> None:
        """Starts the thread."""
        self._node, self._topology, self._idle = node, node.topology, idle
        self._gpus = gpus
        self._numbers = Numbers(node)
        self._files: Files | None = None
        self._reached: set[int] = set()  # hidden GPUs on which the service copies for us
        self._unreached: dict[int, str] = {}  # hidden GPUs on which it does not copy, and why
        self._key = directory.key_of(self._topology)
        self._event = _C.transfer_demands_event()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopped = threading.Event()
        self._socket: socket.socket | None = None
        self._demands: dict[Ends, float] = {}  # the time until which each is kept; inf: under way
        self._told: tuple[tuple[int, ...], tuple[Ends, ...]] | None = None
        self._lent: tuple[tuple[int, ...], tuple[float, ...]] | None = None
        self._serial = 0
        self._said = False
        self.grants = 0
        self.state = "connecting"  # then "lent", or "alone: " and a reason
        _clients.add(self)
        self._thread = threading.Thread(target=self._run, name="glake-relay-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and the connection. What was lent to this process goes back to the
        others."""
        self._stopped.set()
        os.write(self._wake_write, b"x")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    @property
    def served(self) -> bool:
        """Whether the service copies for this process on GPUs that it does not see."""
        return bool(self._reached)

    def stats(self) -> Lent:
        """The client's state, and how many grants have arrived."""
        found: Lent = {"service": self.state, "grants": self.grants}
        if self._node.hides_some:
            lent = () if self._lent is None else self._lent[0]
            here = {self._numbers.here(gpu) for gpu in lent}
            found["hidden"] = sorted(self._reached & here)
            found["not_reached"] = {
                f"cuda:{gpu}": why for gpu, why in dict(self._unreached).items() if gpu in here
            }
        return found

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._stopped.is_set():
            before = self.grants
            try:
                self._converse()
                return
            except RelayRefused as error:
                self._alone(error)
                self._stopped.wait()
                return
            except Exception as error:  # after any error, this process must use its own GPUs alone
                self._alone(error)
            wait = _FIRST_WAIT if self.grants > before else min(2 * wait, _LONGEST_WAIT)
            self._stopped.wait(wait * random.uniform(0.5, 1))

    def _alone(self, error: Exception) -> None:
        self._lent = None
        try:
            _C.transfer_lend(0, [])
        except GlakeError as closed:
            self.state = f"alone: {error}; {closed}"
            return
        self.state = f"alone: {error}"  # last, so that the other statistics agree with it
        if self._said or self._stopped.is_set():
            return
        self._said = True
        with contextlib.suppress(RuntimeWarning):  # if warnings are errors, nobody could catch it
            warnings.warn(
                f"glake: no relay service, copies go over this process's own GPUs: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _converse(self) -> None:
        """Talks to the service until the client is stopped. Raises OSError or GlakeError if the
        connection ends before."""
        self._files = files = Files(directory.private(), self._key)
        connection = starting.reach(files, self._topology, self._idle, self._stopped)
        if connection is None:
            return
        self._socket = connection
        try:
            gpus = self._own(_C.transfer_demands()["gpus"])
            total = self._topology.platform.gpus
            hello = Hello(protocol.VERSION, os.getpid(), self._key, gpus, total, self._node.seen)
            protocol.send(connection, hello)
            self._demands.clear()
            self._reached.clear()
            self._unreached.clear()
            self._lent = None
            self._told = None
            self._exchange(connection)
        finally:
            self._socket = None
            connection.close()

    def _exchange(self, connection: socket.socket) -> None:
        polled = select.poll()
        for descriptor in (connection.fileno(), self._event, self._wake_read):
            polled.register(descriptor, select.POLLIN)
        unread = bytearray()
        try:
            self._report(connection)
            looked = time.monotonic()
            while not self._stopped.is_set():
                rest = looked + REST - time.monotonic()
                polled.modify(self._event, 0 if rest > 0 else select.POLLIN)
                ready = {descriptor for descriptor, _ in polled.poll(self._patience(rest))}
                if connection.fileno() in ready:
                    part = connection.recv(_PIECE)
                    if not part:
                        raise RelayUnavailable("the relay service has ended")
                    unread += part
                    self._take(unread)
                if self._event in ready:
                    os.read(self._event, 8)
                    looked = time.monotonic()
                self._report(connection)
        except OSError:
            # It took no more demands. It may have said why: one that was stopped is not started
            # again.
            self._take(unread + _left(connection))
            raise

    def _patience(self, rest: float) -> float | None:
        """Milliseconds until the next look for changes, or until an ended demand is forgotten."""
        now = time.monotonic()
        ends = [until - now for until in self._demands.values() if until != float("inf")]
        ends += [rest] if rest > 0 else []
        return max(0.0, min(ends) * 1000 + 1) if ends else None

    def _report(self, connection: socket.socket) -> None:
        """Sends new demands at once, and the end of demands after a while."""
        found = _C.transfer_demands()
        now = time.monotonic()
        under_way = [self._numbers.ends_there(ends) for ends in found["demands"]]
        for ends in self._demands:
            if ends not in under_way and self._demands[ends] == float("inf"):
                self._demands[ends] = now + LINGER
        self._demands.update(dict.fromkeys(under_way, float("inf")))
        self._demands = {ends: until for ends, until in self._demands.items() if until > now}
        told = self._own(found["gpus"]), tuple(self._demands)
        if told == self._told:
            return
        self._told = told
        self._serial += 1
        demands = tuple((*ends, 1.0) for ends in told[1][: protocol.MOST_DEMANDS])
        protocol.send(connection, Demands(self._serial, told[0], demands))

    def _own(self, used: list[int]) -> tuple[int, ...]:
        return tuple(sorted(self._numbers.there(gpu) for gpu in {*self._gpus, *used}))

    def _take(self, unread: bytearray) -> None:
        """Applies the newest grant that has arrived completely."""
        grant: Grant | None = None
        while len(unread) >= protocol.HEAD_BYTES:
            size = protocol.length(bytes(unread[: protocol.HEAD_BYTES]), protocol.MOST_ANSWER)
            end = protocol.HEAD_BYTES + size
            if len(unread) < end:
                break
            message = protocol.decode(bytes(unread[protocol.HEAD_BYTES : end]), (Grant, Refused))
            del unread[:end]
            if isinstance(message, Refused):
                known = RelayRefused if message.lasting else RelayUnavailable
                raise known(message.reason)
            grant = message
        if grant is None:
            return
        lent = grant.relays, grant.limits
        if lent != self._lent:  # a change makes the engine plan again
            relays = self._usable(self._numbers.here(gpu) for gpu in grant.relays)
            limits = self._numbers.limits_here(grant.limits)
            _C.transfer_lend(sum(1 << gpu for gpu in relays), limits)
            self._lent = lent
        self.grants += 1
        self.state = "lent"

    def _usable(self, relays: Iterable[int]) -> list[int]:
        """Those of the lent GPUs that this process sees, or on which the service copies, by its
        numbers."""
        usable = []
        for gpu in relays:
            if gpu >= len(self._node.seen) and not self._reach(gpu):
                continue
            usable.append(gpu)
        return usable

    def _reach(self, gpu: int) -> bool:
        if gpu in self._reached or gpu in self._unreached:
            return gpu in self._reached
        assert self._files is not None
        there = self._numbers.there(gpu)
        try:
            _C.transfer_open_relays(str(self._files.copies), [gpu], [there])
            self._reached.add(gpu)
        except GlakeError as error:  # other GPUs may still work
            self._unreached[gpu] = str(error)
        return gpu in self._reached

    def forget(self) -> None:
        """Called in a forked child. The connection is the parent's, and must end with the
        parent."""
        if self._socket is not None:
            os.close(self._socket.detach())


def _left(connection: socket.socket) -> bytes:
    """What has arrived and was not read, of a service that has ended."""
    found = bytearray()
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        while part := connection.recv(_PIECE):
            found += part
    return bytes(found)


def _forked() -> None:
    for client in list(_clients):
        client.forget()
    _clients.clear()


os.register_at_fork(after_in_child=_forked)
