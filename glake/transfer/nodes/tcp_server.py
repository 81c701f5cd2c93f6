"""Sends registered memory to the peers that ask for it over TCP."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Callable

from glake.transfer.nodes import tcp_format
from glake.transfer.nodes.address import watch
from glake.transfer.nodes.tcp_format import ANSWER, GREETING, READ, REFUSED, REQUEST

BACKLOG = 128
_GREETING_SECONDS = 10.0
_MOST_STRANGERS = 32  # connections before their greeting
_MOST_OF_A_READER = 64
_REST = 0.05  # seconds, when the system has no descriptor or no thread left


class MemoryServer:
    """Listens, and serves each connection on a thread of its own, which sleeps in the system until
    a request comes. It only reads the memory.

    Args:
        listener: listens already.
        memory: what readers may read.
        address: of the memory, as requests name it.
        token: readers must send it.
    """

    def __init__(
        self, listener: socket.socket, memory: memoryview, address: int, token: bytes
    ) -> None:
        self._listener, self._memory, self._address = listener, memory, address
        self._token = token
        self._readers: set[bytes] = set()
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        self._serving: dict[socket.socket, bytes] = {}  # by connection: the reader
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._run(self._accept)

    def admit(self, reader: bytes) -> None:
        """Lets a reader connect."""
        with self._lock:
            self._readers.add(reader)

    def expel(self, reader: bytes) -> None:
        """Ends a reader's connections, and lets it make no more."""
        with self._lock:
            self._readers.discard(reader)
            self._end([each for each, owner in self._serving.items() if owner == reader])

    def close(self) -> None:
        """Ends all connections. When it returns, no thread uses the memory any more."""
        with self._lock:
            self._closed = True
            self._end([self._listener, *self._strangers, *self._serving])
        while threads := list(self._threads):  # one may just have started another
            for thread in threads:
                thread.join()
        self._listener.close()
        self._memory.release()

    def forget(self) -> None:
        """Closes the descriptors of a forked child. Otherwise a peer would not see the parent's
        end. It takes no lock: a thread that the child does not have may hold it."""
        self._closed = True
        for each in [self._listener, *self._strangers, *self._serving]:
            each.close()

    def _end(self, connections: list[socket.socket]) -> None:
        """Wakes the threads that use the connections. Each closes its own, under the lock, so that
        no other connection has got the same descriptor."""
        for each in connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _run(self, task: Callable[..., object], *arguments: object) -> None:
        def run() -> None:
            try:
                task(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name="glake-tcp", daemon=True)
        with self._lock:
            thread.start()
            self._threads.add(thread)  # close() joins it

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._closed:
                    time.sleep(_REST)
                continue
            with self._lock:
                if len(self._strangers) >= _MOST_STRANGERS:  # a reader greets at once
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    self._end([oldest])
                self._strangers[connection] = None
                if self._closed:
                    self._end([connection])
            try:
                self._run(self._serve, connection)
            except RuntimeError:  # no new thread
                self._drop(connection)
                time.sleep(_REST)

    def _serve(self, connection: socket.socket) -> None:
        """Serves one connection until it ends."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch(connection)
            if self._greeted(connection):
                connection.settimeout(None)
                while self._answered(connection):
                    pass
        except OSError:
            pass  # the reader is gone, or has been expelled
        finally:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(connection, None)
            self._serving.pop(connection, None)
            connection.close()

    def _greeted(self, connection: socket.socket) -> bool:
        """Whether the greeting comes in time, is right, and is that of a reader that may have one
        more connection."""
        greeting = _exactly(connection, GREETING.size, time.monotonic() + _GREETING_SECONDS)
        if greeting is None:
            return False
        magic, reader, token = GREETING.unpack(greeting)
        if magic != tcp_format.MAGIC or not hmac.compare_digest(token, self._token):
            return False
        with self._lock:
            self._strangers.pop(connection, None)
            known = reader in self._readers and not self._closed
            if not known or list(self._serving.values()).count(reader) >= _MOST_OF_A_READER:
                return False
            self._serving[connection] = reader
        return True

    def _answered(self, connection: socket.socket) -> bool:
        """Whether one request came and was answered. A wrong one is refused, and is the last."""
        request = _exactly(connection, REQUEST.size)
        if request is None:
            return False
        address, size = REQUEST.unpack(request)
        if not tcp_format.within(address, size, self._address, len(self._memory)):
            connection.sendall(ANSWER.pack(REFUSED, 0), socket.MSG_NOSIGNAL)
            return False
        begin = address - self._address
        with self._memory[begin : begin + size] as part:
            head = ANSWER.pack(READ, size)
            sent = connection.sendmsg([head, part], [], socket.MSG_NOSIGNAL)
            while sent < len(head):  # the system took only a part of the first bytes
                sent += connection.send(head[sent:], socket.MSG_NOSIGNAL)
            if sent < len(head) + size:
                with part[sent - len(head) :] as rest:
                    connection.sendall(rest, socket.MSG_NOSIGNAL)
        return True


def _exactly(connection: socket.socket, size: int, until: float | None = None) -> bytes | None:
    """So many bytes; None if the connection ends or the time is up. Raises OSError."""
    got = bytearray()
    while len(got) < size:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                return None
            connection.settimeout(left)
        part = connection.recv(size - len(got))
        if not part:
            return None
        got += part
    return bytes(got)
