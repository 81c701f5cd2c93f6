"""This process as a node: the memory that it exposes to other nodes, and its connections."""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from glake import arguments, files
from glake.errors import (
    BadMessage,
    GlakeError,
    InvalidArgument,
    PeerFailed,
    PeerLost,
    PeerRefused,
    TransferClosed,
)
from glake.transfer import flat, handle
from glake.transfer.array_memory import memory_of
from glake.transfer.engine import default_engine
from glake.transfer.nodes import messages, settings
from glake.transfer.nodes.address import Address, watch
from glake.transfer.nodes.backend import Backend
from glake.transfer.nodes.carrier import Carrier
from glake.transfer.nodes.channel import Channel, greet
from glake.transfer.nodes.exposed import Exposed
from glake.transfer.nodes.messages import Join, Refused
from glake.transfer.nodes.peer import Peer
from glake.transfer.nodes.serving import Serving
from glake.transfer.nodes.stats import Counters

if TYPE_CHECKING:
    from glake.typing import Array

CHUNK = 4 << 20
DEPTH = 8
TIMEOUT = 30.0
_MOST_CONNECTIONS = 256
_GREETING = 10.0  # seconds in which a new connection must show that its side has the secret
_FIRST_REST, _LAST_REST = 0.05, 1.0  # seconds between two attempts to connect


class Node:
    """This process as one of several nodes. It exposes memory by name, and reads and writes memory
    of peers.

    A transfer has two legs. Over the network an engine (TCP, NIXL or Mooncake) carries the bytes.
    Between pinned buffers and GPUs glake copies them over all paths of the node. Several pieces are
    in the buffers at once, so that both legs work at the same time. As a context manager, the node
    closes at the end.

    Args:
        listen: where peers connect: "host:port" (port 0: any free one) or "unix:/path". None: no
            peer can.
        secret: a text or bytes that all nodes know, at least 16 characters or bytes. A host and a
            port require it. It guards who may ask for what. The engine's own traffic is neither
            signed nor encrypted (docs/nodes.md).
        backend: the engine: "tcp", "nixl", "mooncake", or an object of Nixl or Mooncake with
            settings of its own. None: on a machine with an RDMA device NIXL or Mooncake, whichever
            is installed, and on another machine "tcp". Both nodes of a connection need the same.
        chunk: bytes of a piece, or text such as "4MiB".
        host: the address at which peers' engines reach this node. None: the host of `listen`; for
            a socket's path, the loopback; without `listen`, or with 0.0.0.0, the machine's name.
            "tcp" listens there alone. On a loopback address NIXL's UCX stays on the loopback,
            unless it is told otherwise.
        depth: pieces under way at once, in each direction, 1 to 256. The node holds 2 * chunk *
            depth bytes of pinned memory.
        timeout: seconds. A peer is lost if a piece takes longer to come, or if an answer takes
            three times as long.

    Raises:
        InvalidArgument: another value, a port without a secret, or a port that is in use already.
        PackageMissing: the engine's package is not installed, or the machine has RDMA and no engine
            for it is installed. The text names the line that installs one.
        PeerFailed: the engine does not start, or `host` is no address of this machine.
        OutOfMemory, DriverError: no pinned memory.
    """

    def __init__(
        self,
        listen: str | None = None,
        secret: str | bytes | None = None,
        backend: str | Backend | None = None,
        chunk: str | int = CHUNK,
        depth: int = DEPTH,
        timeout: float = TIMEOUT,
        host: str | None = None,
    ) -> None:
        at = None if listen is None else Address.of(listen, listen=True)
        self._secret = settings.secret_of(secret)
        if at is not None and not at.path and not self._secret:
            raise InvalidArgument(
                f"listen {listen!r} without a secret: who can reach the port, as any user of this "
                'machine can, could read what is exposed; pass secret=, or listen="unix:/path"'
            )
        block, several, self._timeout = settings.sizes(chunk, depth, timeout)
        engine = settings.backend_of(backend)
        default_engine()  # opened first, so at the process's end it is closed after this node
        self._family = handle.family()
        self._counters = Counters()
        self._lock = threading.Lock()
        self._exposed: dict[str, Exposed] = {}
        self._links: dict[int, Channel] = {}
        self._strangers: set[socket.socket] = set()  # connections before the end of their greeting
        self._users: list[threading.Thread] = []
        self._closed = False
        self._server, self._at = _listening(at)
        self._path = files.SocketFile(at.path) if at is not None and at.path else None
        with contextlib.ExitStack() as undo:  # what was begun, if the node does not start
            undo.callback(self._unlisten)
            reached = settings.host_of(host, self._at)
            self._carrier = Carrier(engine, reached, block, several, self._counters)
            undo.callback(self._carrier.close)
            self._fetching = _threads(several, "glake-node-fetch")
            undo.callback(self._fetching.shutdown)
            self._serving = _threads(several, "glake-node-serve")
            undo.callback(self._serving.shutdown)
            if self._server is not None:
                self._run(self._accept)
            undo.pop_all()
        atexit.register(self.close)
        _open.add(self)

    def __repr__(self) -> str:
        """Its address, its engine, and how many peers it has."""
        peers = "closed" if self._closed else f"{len(self._links)} peers"
        at = self.address or "not listening"
        return f"<Node {at}, over {self._carrier.backend.name}, {peers}>"

    @property
    def address(self) -> str | None:
        """The address to which peers connect, with its port. None: it does not listen."""
        return None if self._at is None else str(self._at)

    def expose(self, name: str, memory: Array, writable: bool = False) -> None:
        """Lets peers read memory by a name. Each piece has the memory's content when it is read.

        No stream of this process waits for peers. So work that writes the memory must be done
        before peers read it. What a peer writes is there once the peer's handle is done.

        Args:
            name: 1 to 200 printable characters. No memory is exposed by this name yet.
            memory: contiguous: a tensor, an array, a buffer object or `Raw`, of the host or a GPU.
                It is kept until hide() or close().
            writable: peers may write to it as well.

        Raises:
            InvalidArgument: another name, memory with gaps, or read-only memory with `writable`.
        """
        self._require_open()
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 200:
            raise InvalidArgument(f"name {name!r}: a printable text of 1 to 200 characters")
        found = memory_of(memory, write=arguments.flag("writable", writable))
        flat.require(found)
        exposed = Exposed(name, found, flat.gpu_of(found), writable)
        with self._lock:
            if name in self._exposed:
                raise InvalidArgument(f"{name!r} is exposed already: hide() it first")
            self._exposed[name] = exposed

    def hide(self, name: str) -> None:
        """Ends expose(). When it returns, nobody reads or writes the memory any more.

        Args:
            name: as it was exposed.

        Raises:
            InvalidArgument: nothing is exposed by this name.
            BusyTimeout: the memory is hidden, but a copy of it did not end in the node's `timeout`.
        """
        self._require_open()
        with self._lock:
            exposed = self._exposed.pop(name, None)
        if exposed is None:
            raise InvalidArgument(f"nothing is exposed as {name!r}")
        exposed.hide(self._timeout)

    def connect(self, address: str, timeout: float | None = None) -> Peer:
        """Connects to another node, which may begin to listen only later.

        Args:
            address: the other node's `address`: "host:port" or "unix:/path".
            timeout: seconds in which it must answer; None: this node's `timeout`.

        Raises:
            InvalidArgument: no address, or a port although this node has no secret.
            PeerLost: nobody answers there.
            PeerRefused: it has another secret, another version of glake or another engine.
        """
        self._require_open()
        to = Address.of(address)
        if not to.path and not self._secret:
            raise InvalidArgument(f"connect to {address!r} without a secret: give the node one")
        limit = self._timeout if timeout is None else settings.seconds(timeout)
        connection = _connected(to, limit)
        try:
            secret = b"" if to.path else self._secret
            channel = greet(connection, secret, True, self._timeout, limit)
            channel.send(self._join())
            theirs = channel.receive(messages.JOINS, limit)
            name, metadata, block = self._joined(theirs)
        except BaseException as error:
            connection.close()
            if isinstance(error, BadMessage):
                raise PeerRefused(f"{to} is no node of glake: {error}") from None
            raise
        peer = Peer(str(to), channel, self._carrier, name, block, self._fetching, self._timeout)
        try:
            self._run(self._attend, peer, channel, metadata)
        except BaseException:
            channel.dispose()
            raise
        return peer

    def stats(self) -> dict[str, int]:
        """The figures so far, for each leg: the fields of NodeStats."""
        handle.require_own(self._family)
        return self._counters.as_dict()

    def close(self) -> None:
        """Ends all connections. Transfers under way end with PeerLost. Then it ends the engine and
        frees its buffers. A second call, or one in a forked child, does nothing."""
        if self._family is not handle.family():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            links = list(self._links.values())
            for stranger in self._strangers:
                with contextlib.suppress(OSError):
                    stranger.shutdown(socket.SHUT_RDWR)
            hidden, self._exposed = list(self._exposed.values()), {}
        self._unlisten()
        for channel in links:
            channel.close()
        self._fetching.shutdown(wait=True)
        for thread in list(self._users):
            thread.join()
        self._serving.shutdown(wait=True)
        for each in hidden:
            each.hide(0)
        self._carrier.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Node:
        """The node itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def _forget(self) -> None:
        """Closes the descriptors of a forked child. Otherwise peers would not see the parent's end
        as long as the child lives. It takes no lock: a thread that is not here may hold it."""
        for channel in list(self._links.values()):
            channel.forget()
        for stranger in list(self._strangers):
            stranger.close()
        if self._server is not None:
            self._server.close()

    def _require_open(self) -> None:
        handle.require_own(self._family)
        if self._closed:
            raise TransferClosed("this node is closed")

    def _run(self, task: Any, *arguments: Any) -> None:
        """Runs a task on a thread of its own. close() waits for the thread."""

        def run() -> None:
            try:
                task(*arguments)
            finally:
                with self._lock:
                    self._users.remove(thread)

        thread = threading.Thread(target=run, name="glake-node", daemon=True)
        with self._lock:
            if self._closed:
                raise TransferClosed("this node is closed")
            thread.start()
            self._users.append(thread)  # close() joins it

    def _unlisten(self) -> None:
        if self._server is None:
            return
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes accept()
        if self._path is not None:
            self._path.remove()
        self._server.close()

    def _accept(self) -> None:
        server = self._server
        assert server is not None
        while not self._closed:
            try:
                connection, _ = server.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_FIRST_REST)  # no descriptor is free now; later there may be one
                continue
            if len(self._users) > _MOST_CONNECTIONS:
                connection.close()
                continue
            try:
                self._run(self._welcome, connection)
            except (TransferClosed, RuntimeError):  # RuntimeError: no new thread
                connection.close()

    def _welcome(self, connection: socket.socket) -> None:
        """Serves one connection of a peer, from its greeting to its end."""
        with self._lock:
            self._strangers.add(connection)
            if self._closed:
                connection.close()
        try:
            serving, channel, metadata = self._greeted(connection)
        except (GlakeError, OSError):
            connection.close()
            return
        finally:
            with self._lock:
                self._strangers.discard(connection)
        self._attend(serving, channel, metadata)

    def _greeted(self, connection: socket.socket) -> tuple[Serving, Channel, bytes]:
        limit = min(self._timeout, _GREETING)
        secret = self._secret
        if connection.family == socket.AF_UNIX:
            secret = b""
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch(connection)
        channel = greet(connection, secret, False, self._timeout, limit)
        theirs = channel.receive(messages.JOINS, limit)
        try:
            name, metadata, _ = self._joined(theirs)
        except PeerRefused as error:
            channel.send(Refused(messages.printable(error)))
            raise
        try:
            channel.send(self._join())
        except BaseException:
            self._carrier.leave(metadata)
            raise
        serving = Serving(channel, self._carrier, name, self._serving, self._find, self._timeout)
        return serving, channel, metadata

    def _attend(self, side: Serving | Peer, channel: Channel, metadata: bytes) -> None:
        """Serves one connection until it ends, and counts it in the figures."""
        self._counters.add(peers=1)
        with self._lock:
            self._links[id(channel)] = channel
            if self._closed:
                channel.close()
        lost = False
        try:
            if isinstance(side, Peer):
                side.listen()
                lost = not side.was_closed
            else:
                side.run()
        except PeerLost as error:
            lost = "has ended the connection" not in str(error)
        except GlakeError:
            lost = True
        finally:
            with self._lock:
                del self._links[id(channel)]
                lost = lost and not self._closed
            channel.dispose()
            self._carrier.leave(metadata)
            self._counters.add(peers=-1, lost_peers=int(lost))

    def _join(self) -> Join:
        engine = self._carrier.backend
        metadata = base64.b64encode(engine.metadata()).decode()
        return Join(engine.name, metadata, self._carrier.block)

    def _joined(self, theirs: Join | Refused | None) -> tuple[str, bytes, int]:
        """(our engine's name of the peer, the metadata of its engine, bytes of a piece).
        Carrier.leave() must follow."""
        if theirs is None:
            raise PeerLost(f"the other node has said nothing for {self._timeout:g} s")
        if isinstance(theirs, Refused):
            raise PeerRefused(f"the other node refuses: {theirs.reason}")
        mine = self._carrier.backend.name
        if theirs.backend != mine:
            raise PeerRefused(
                f"this node has the engine {mine!r}, the other {theirs.backend!r}: choose one "
                "engine for both, such as Node(backend='tcp')"
            )
        metadata = theirs.bytes()
        return self._carrier.join(metadata), metadata, min(theirs.chunk, self._carrier.block)

    def _find(self, name: str) -> Exposed:
        with self._lock:
            exposed = self._exposed.get(name)
        if exposed is None:
            raise InvalidArgument(f"nothing is exposed as {name!r}")
        return exposed


_open: weakref.WeakSet[Node] = weakref.WeakSet()


def _forget() -> None:
    for node in list(_open):
        node._forget()
    _open.clear()


os.register_at_fork(after_in_child=_forget)


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    made = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        made.submit(int)  # starts one thread: the system may refuse others later
    except RuntimeError as error:
        raise PeerFailed(f"the node does not start: {error}") from None
    return made


def _listening(at: Address | None) -> tuple[socket.socket | None, Address | None]:
    if at is None:
        return None, None
    try:
        server = at.listen()
    except OSError as error:
        raise InvalidArgument(f"listen {at}: {error}") from None
    os.set_inheritable(server.fileno(), False)
    return server, at if at.path else Address(at.host, server.getsockname()[1])


def _connected(to: Address, limit: float) -> socket.socket:
    end, rest = time.monotonic() + limit, _FIRST_REST
    while True:
        left = end - time.monotonic()
        try:
            return to.connect(max(left, 0.001))
        except OSError as error:
            if left <= rest:
                raise PeerLost(f"nobody answers at {to} in {limit:g} s: {error}") from None
        time.sleep(rest)
        rest = min(2 * rest, _LAST_REST)
