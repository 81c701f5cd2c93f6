"""A connection between two nodes. It carries messages, each after its length and its MAC (message
authentication code)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import select
import socket
import struct
import threading
import time
from typing import Any

from glake.errors import BadMessage, PeerLost, PeerRefused
from glake.transfer.nodes import messages
from glake.transfer.nodes.address import require_same_user
from glake.transfer.relay import protocol

_NUMBER = struct.Struct(">Q")
_TIMES = struct.Struct("ll")
_MAC = hashlib.sha256().digest_size
SHORTEST_SECRET = 16
_FLAGS = socket.MSG_NOSIGNAL  # a program may let SIGPIPE end it
_GONE = "the other node has ended the connection"


class Channel:
    """A connection after its greeting. Any thread may send. One thread receives.

    Each message has a MAC over its direction, its number and its text. The key is made of the
    shared secret and of random numbers from both sides. So nobody without the secret can add,
    repeat or leave out a message. On a Unix socket messages have no MAC, because the process at the
    other end is the same user's.
    """

    def __init__(self, connection: socket.socket, key: bytes, client: bool, timeout: float) -> None:
        self._socket, self._key = connection, key
        self._way = (b"<", b">") if client else (b">", b"<")  # received, sent
        self._received = self._sent = 0
        self._sending = threading.Lock()
        self._unread = bytearray()
        self._ended: str | None = None  # why this side has ended it
        connection.settimeout(None)
        seconds = _TIMES.pack(int(timeout), int(timeout % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as this side knows."""
        return self._ended is None

    def send(self, message: Any) -> None:
        """Sends a message. Raises PeerLost if the other side is gone, or does not read in time."""
        text = protocol.encode(message)
        with self._sending:
            body = memoryview(text)[protocol.HEAD_BYTES :]
            mac = self._mac(self._way[1], self._sent, body)
            self._sent += 1
            try:
                self._socket.sendall(text[: protocol.HEAD_BYTES] + mac + body, _FLAGS)
            except OSError as error:
                gone = isinstance(error, ConnectionError)
                self.close(_GONE if gone else f"the connection has ended: {error}")
                raise PeerLost(str(self._ended)) from None

    def receive(self, known: tuple[type[Any], ...], timeout: float | None = None) -> Any:
        """The next message, or None after `timeout` seconds without one.

        Raises:
            PeerLost: the other side has ended, or close() was called. The text says which.
            PeerRefused: the MAC was not made with our key.
            BadMessage: the message is none of `known`. The connection is closed.
        """
        try:
            return self._receive(known, timeout)
        except (PeerLost, PeerRefused, BadMessage) as error:
            self.close(str(error))
            raise
        except (OSError, ValueError) as error:  # also if another thread has closed it
            self.close(f"the connection has ended: {error}")
            raise PeerLost(str(self._ended)) from None

    def close(self, why: str = "closed here") -> None:
        """Ends the connection. A thread in receive() gets PeerLost with the first reason given."""
        self._ended = self._ended or why
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def dispose(self) -> None:
        """Closes the descriptor, when no thread uses it any more."""
        self.close()
        self._socket.close()

    def forget(self) -> None:
        """Closes the descriptor of a forked child. The connection stays its parent's."""
        self._socket.close()

    def _receive(self, known: tuple[type[Any], ...], timeout: float | None) -> Any:
        end = None if timeout is None else time.monotonic() + timeout
        mac = _MAC if self._key else 0
        while True:
            if len(self._unread) >= protocol.HEAD_BYTES:
                head = bytes(self._unread[: protocol.HEAD_BYTES])
                size = protocol.length(head, messages.MOST_BYTES)
                whole = protocol.HEAD_BYTES + mac + size
                if len(self._unread) >= whole:
                    break
            if not _readable(self._socket, end):
                return None
            part = self._socket.recv(1 << 16)
            if not part:
                raise PeerLost(self._ended or _GONE)
            self._unread += part
        body = bytes(self._unread[protocol.HEAD_BYTES + mac : whole])
        given = bytes(self._unread[protocol.HEAD_BYTES : protocol.HEAD_BYTES + mac])
        del self._unread[:whole]
        if not hmac.compare_digest(given, self._mac(self._way[0], self._received, body)):
            self._refuse()
            raise PeerRefused("the other node has another secret: give both the same secret=")
        self._received += 1
        return protocol.decode(body, known)

    def _refuse(self) -> None:
        """Tells the other side that its MAC is wrong, by a message whose own MAC is wrong. With a
        right one a stranger could find out the secret, by trying many without asking again."""
        refusal: Any = messages.Refused("another secret")
        text = protocol.encode(refusal)
        head, body = text[: protocol.HEAD_BYTES], text[protocol.HEAD_BYTES :]
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(head + bytes(_MAC) + body, _FLAGS)

    def _mac(self, way: bytes, number: int, body: bytes | memoryview) -> bytes:
        if not self._key:
            return b""
        made = hmac.new(self._key, way + _NUMBER.pack(number), hashlib.sha256)
        made.update(body)
        return made.digest()


def greet(
    connection: socket.socket, secret: bytes, client: bool, timeout: float, limit: float
) -> Channel:
    """Exchanges versions and random numbers on a new connection, in `limit` seconds.

    Raises:
        PeerRefused: another version, or another user's process.
        PeerLost: the other side ends, or sends nothing in time.
        BadMessage: it sends a message that no node sends.
    """
    connection.settimeout(limit)
    if connection.family == socket.AF_UNIX:
        require_same_user(connection)
    mine = messages.Hello(messages.VERSION, secrets.token_hex(32))
    try:
        if client:
            _send(connection, mine)
        theirs = _receive(connection, limit)
        if not client and isinstance(theirs, messages.Hello):
            _send(connection, mine)
    except OSError as error:
        raise PeerLost(f"the other node does not answer: {error}") from None
    if isinstance(theirs, messages.Refused):
        raise PeerRefused(theirs.reason)
    if theirs.version != mine.version:
        raise PeerRefused(
            f"the other node speaks version {theirs.version} of the protocol, this one "
            f"{mine.version}: both need the same glake"
        )
    nonces = (mine.nonce, theirs.nonce) if client else (theirs.nonce, mine.nonce)
    key = hmac.digest(secret, f"glake-node {nonces[0]} {nonces[1]}".encode(), "sha256")
    return Channel(connection, key if secret else b"", client, timeout)


def _send(connection: socket.socket, message: Any) -> None:
    connection.sendall(protocol.encode(message), _FLAGS)


def _receive(connection: socket.socket, timeout: float) -> Any:
    # It reads no byte beyond the greeting, because later bytes belong to the channel. A slow peer
    # is cut off at the limit.
    end = time.monotonic() + timeout

    def exactly(size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            if not _readable(connection, end):
                raise PeerLost(f"the other node has said nothing for {timeout:g} s")
            part = connection.recv(size - len(got))
            if not part:
                raise PeerLost(_GONE)
            got += part
        return bytes(got)

    size = protocol.length(exactly(protocol.HEAD_BYTES), messages.MOST_HELLO)
    return protocol.decode(exactly(size), messages.HELLOS)


def _readable(connection: socket.socket, end: float | None) -> bool:
    polled = select.poll()
    polled.register(connection, select.POLLIN)
    left = None if end is None else max(0, int((end - time.monotonic()) * 1000) + 1)
    return bool(polled.poll(left))
