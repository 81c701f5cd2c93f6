"""Reads of peers' registered memory over TCP. The thread that asks whether a read is over also
receives its bytes. So nothing is written behind its back."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading

from glake.errors import PeerFailed
from glake.transfer.nodes.address import watch
from glake.transfer.nodes.backend import NetworkRead
from glake.transfer.nodes.tcp_format import ANSWER, READ, REFUSED, REQUEST, Metadata

MOST_CONNECTIONS = 16  # to a peer; further reads wait for one
_NOT_REACHED = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
_ENDED = "the other node has ended the connection amid a read"


class Connection:
    """One connection, on which one read at a time goes. No call blocks, save wait()."""

    def __init__(self, to: Metadata, greeting: bytes) -> None:
        family = socket.AF_INET6 if ":" in to.host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch(self.socket)
            with contextlib.suppress(BlockingIOError):
                self.socket.connect((to.host, to.port))
        except BaseException:
            self.socket.close()
            raise
        self._unsent = greeting
        self._head = bytearray(ANSWER.size)
        self._got = self._size = 0  # bytes of the answer, and of the memory in it
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self.socket, select.POLLOUT)
        self._readable.register(self.socket, select.POLLIN)

    def is_open(self) -> bool:
        """Whether another read can begin. The peer sends nothing unless it is asked."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def ask(self, address: int, size: int) -> None:
        """Begins a read."""
        self._unsent += REQUEST.pack(address, size)
        self._got, self._size = 0, size

    def arrived(self, into: memoryview) -> bool:
        """Receives what has come, and tells whether it is all. Raises PeerFailed or OSError."""
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent, socket.MSG_NOSIGNAL)
                self._unsent = self._unsent[sent:]
            while self._got < ANSWER.size + self._size:
                self._receive(into)
        except BlockingIOError:
            return False
        return True

    def _receive(self, into: memoryview) -> None:
        head = self._got < ANSWER.size
        memory = memoryview(self._head) if head else into
        with memory[self._got if head else self._got - ANSWER.size :] as part:
            received = self.socket.recv_into(part)
        if received == 0:
            raise PeerFailed(_ENDED)
        self._got += received
        if head and self._got == ANSWER.size:
            self._check()

    def _check(self) -> None:
        kind, size = ANSWER.unpack(self._head)
        if kind == REFUSED:
            raise PeerFailed("the other node refuses a read outside its registered memory")
        if kind != READ or size != self._size:
            raise PeerFailed(f"the other node answers {kind} with {size} bytes to {self._size}")

    def wait(self, seconds: float) -> None:
        """Waits until more has come, at most so long."""
        (self._writable if self._unsent else self._readable).poll(seconds * 1000)


class Connections:
    """The connections to one peer."""

    def __init__(self, to: Metadata, reader: bytes) -> None:
        self.to, self._greeting = to, to.greeting(reader)
        self._idle: list[Connection] = []
        self._busy: dict[Connection, TcpRead] = {}
        self._closed = False
        self._changed = threading.Condition()

    def take(self, read: TcpRead) -> Connection | None:
        """A connection for a read, until give_back(). None if there are as many as may be. Raises
        PeerFailed or OSError."""
        with self._changed:
            if self._closed:
                raise PeerFailed("the other node is removed, or this one is closed")
            while self._idle:
                found = self._idle.pop()
                if found.is_open():
                    break
                found.socket.close()
            else:
                if len(self._busy) >= MOST_CONNECTIONS:
                    return None
                found = Connection(self.to, self._greeting)
            self._busy[found] = read
            return found

    def give_back(self, connection: Connection, whole: bool) -> None:
        """Ends the use of a connection. Unless its read came whole, it is closed, because bytes of
        that read may still come on it."""
        with self._changed:
            self._busy.pop(connection, None)
            if whole and not self._closed:
                self._idle.append(connection)
            else:
                connection.socket.close()
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Waits until a read can begin, at most so long."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._idle or len(self._busy) < MOST_CONNECTIONS, seconds
            )

    def close(self) -> None:
        """Ends all reads and connections."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            reads = list(self._busy.values())
            self._changed.notify_all()
        for each in idle:
            each.socket.close()
        for read in reads:
            read.cancel()

    def forget(self) -> None:
        """Closes the descriptors of a forked child, without a lock. The connections stay."""
        self._closed = True
        for each in [*self._idle, *self._busy]:
            each.socket.close()


class TcpRead(NetworkRead):
    """A read. Bytes are written to the memory only within over()."""

    def __init__(self, connections: Connections, into: memoryview, remote: int) -> None:
        self._connections, self._into, self._remote = connections, into, remote
        self._size = len(into)
        self._connection: Connection | None = None
        self._cancelled = self._done = False
        self._failed: str | None = None
        self._lock = threading.Lock()

    def over(self) -> bool:
        with self._lock:
            if not self._done and self._failed is None:
                try:
                    self._done = self._advanced()
                except (PeerFailed, OSError) as error:
                    self._end(self._text(error))
                else:
                    if self._done:
                        self._end(None)
            if self._failed is not None:
                raise PeerFailed(self._failed)
            return self._done

    def wait(self, seconds: float) -> None:
        with self._lock:
            connection = self._connection
            if connection is not None and not self._cancelled:
                connection.wait(seconds)
        if connection is None and not self._done and self._failed is None:
            self._connections.wait(seconds)

    def cancel(self) -> None:
        self._cancelled = True  # before the lock: over() and wait() then do not take it for long
        with self._lock:
            if not self._done and self._failed is None:
                self._end("the read was given up")

    def _advanced(self) -> bool:
        if self._cancelled:
            raise PeerFailed("the read was given up")
        if self._connection is None:
            self._connection = self._connections.take(self)
            if self._connection is None:
                return False
            self._connection.ask(self._remote, self._size)
        return self._connection.arrived(self._into)

    def _text(self, error: Exception) -> str:
        to = self._connections.to
        text = f"TCP, {to.host} port {to.port}: {error}"
        if getattr(error, "errno", None) in _NOT_REACHED:
            text += "; unless the other node has ended, give it a host= that this one reaches"
        return text

    def _end(self, failed: str | None) -> None:
        self._failed = failed
        self._into.release()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.give_back(connection, failed is None)
