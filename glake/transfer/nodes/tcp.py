"""glake's own engine between nodes: plain TCP, by Python's standard library alone."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import secrets
import socket
import threading
import weakref
from typing import ClassVar

from glake.errors import BadMessage, InvalidArgument, PeerFailed, PeerRefused
from glake.transfer.nodes import tcp_format
from glake.transfer.nodes.backend import Backend, NetworkRead
from glake.transfer.nodes.tcp_format import Metadata
from glake.transfer.nodes.tcp_reads import Connections, TcpRead
from glake.transfer.nodes.tcp_server import BACKLOG, MemoryServer

_CLOSED = "the TCP engine is closed"


class Tcp(Backend):
    """Carries the bytes over TCP. It needs no package and no RDMA.

    It listens on a free port of the node's host, and sends only the node's pinned buffers, and only
    to peers that have got a random token over the nodes' own connection. A peer that is killed or
    stands still ends its own reads and no others. The traffic is neither encrypted nor signed.
    """

    name: ClassVar[str] = "tcp"

    def __init__(self) -> None:
        self._id = secrets.token_bytes(tcp_format.ID_BYTES)
        self._peers: dict[str, Connections] = {}
        self._server: MemoryServer | None = None
        self._memory: memoryview | None = None
        self._opened = False
        self._metadata: Metadata | None = None
        self._lock = threading.Lock()

    def open(self, address: int, size: int, host: str) -> None:
        if self._opened:
            raise InvalidArgument("this Tcp is another node's: make one for each")
        listener, advertised = _listening(host)
        token = secrets.token_bytes(tcp_format.TOKEN_BYTES)
        memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        try:
            self._server = MemoryServer(listener, memory, address, token)
        except RuntimeError as error:  # no new thread
            listener.close()
            raise PeerFailed(f"the TCP engine does not start: {error}") from None
        port = listener.getsockname()[1]
        self._memory, self._opened = memory, True
        self._metadata = Metadata(advertised, port, self._id.hex(), token.hex(), address, size)
        _open.add(self)

    def metadata(self) -> bytes:
        return b"" if self._metadata is None else self._metadata.encode()

    def add(self, metadata: bytes) -> str:
        try:
            peer = Metadata.read(metadata)
        except BadMessage as error:
            raise PeerRefused(f"the peer's metadata is not that of a TCP engine: {error}") from None
        with self._lock:
            if self._server is None:
                raise PeerFailed(_CLOSED)
            known = self._peers.get(peer.id)
            if known is not None and known.to != peer:
                raise PeerRefused("another peer of the TCP engine has the id of this one")
            if known is None:
                self._peers[peer.id] = Connections(peer, self._id)
                self._server.admit(bytes.fromhex(peer.id))
        return peer.id

    def remove(self, peer: str) -> None:
        with self._lock:
            connections = self._peers.pop(peer, None)
            if self._server is not None:
                self._server.expel(bytes.fromhex(peer))
        if connections is not None:
            connections.close()

    def read(self, peer: str, local: int, remote: int, size: int) -> NetworkRead:
        with self._lock:
            mine, memory, connections = self._metadata, self._memory, self._peers.get(peer)
            if memory is None or mine is None:
                raise PeerFailed(_CLOSED)
            if connections is None:
                raise PeerFailed("the TCP engine does not know this peer")
            if not mine.has(local, size) or not connections.to.has(remote, size):
                raise PeerFailed(
                    f"{size} bytes from {remote:#x} to {local:#x}: outside the registered memory"
                )
            begin = local - mine.address
            return TcpRead(connections, memory[begin : begin + size], remote)

    def close(self) -> None:
        with self._lock:
            server, self._server = self._server, None
            peers, self._peers = self._peers, {}
            self._memory = None
        for each in peers.values():
            each.close()
        if server is not None:
            server.close()
        _open.discard(self)

    def forget(self) -> None:
        """Closes the descriptors of a forked child, without a lock. Its parent goes on."""
        if self._server is not None:
            self._server.forget()
        for each in self._peers.values():
            each.forget()
        self._server, self._memory, self._peers = None, None, {}
        self._lock = threading.Lock()


_open: weakref.WeakSet[Tcp] = weakref.WeakSet()


def _forget() -> None:
    for each in list(_open):
        each.forget()
    _open.clear()


os.register_at_fork(after_in_child=_forget)


def _listening(host: str) -> tuple[socket.socket, str]:
    """(a socket that listens on a free port of the host, the address that peers connect to).
    Raises PeerFailed."""
    try:
        family, address = _address_of(host)
        listener = socket.create_server((address, 0), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise PeerFailed(
            f"the TCP engine cannot listen on {host!r} ({error}): give the node host=, an address "
            "of this machine"
        ) from None
    listener.settimeout(None)  # whatever the program's socket.setdefaulttimeout() says
    if not ipaddress.ip_address(address).is_unspecified:
        return listener, address
    try:
        return listener, _address_of(socket.gethostname(), family)[1]
    except OSError as error:
        listener.close()
        raise PeerFailed(
            f"this machine's name has no address ({error}): give the node host="
        ) from None


def _address_of(host: str, family: int = socket.AF_UNSPEC) -> tuple[socket.AddressFamily, str]:
    """The family and the number of a host. Of several, the first that other machines reach."""
    found = [
        (each[0], str(each[4][0]))
        for each in socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)
    ]
    outer = [each for each in found if not ipaddress.ip_address(each[1]).is_loopback]
    return (outer or found)[0]
