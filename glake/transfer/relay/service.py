"""The relay service, which lends GPUs and parts of links to clients. Each user and topology has
one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from typing import Any

from glake import _C, config
from glake.errors import BadMessage, GlakeError, RelayRefused
from glake.files import SocketFile, lock
from glake.transfer.place import graph_of
from glake.transfer.relay import directory, protocol
from glake.transfer.relay.directory import Files
from glake.transfer.relay.link_shares import Client, Ledger
from glake.transfer.relay.protocol import Ask, Demands, Grant, Hello, Message, Refused, Status
from glake.transfer.topology import Topology

GAP = 0.005  # seconds between two grants: a grant makes every client plan again
PATIENCE = 5.0  # seconds for which a new connection may be silent
LOOK = 1.0  # seconds between two looks whether clients can still find the service
MOST_CLIENTS = 64
_LOG_BYTES = 256 << 10

_log = logging.getLogger("glake.relayd")


class _Connection:
    """A client's connection. At most one grant waits to be sent, the newest. So a client that does
    not read costs nothing and delays nobody."""

    def __init__(self, pid: int, writer: asyncio.StreamWriter) -> None:
        self.pid, self.since, self.serial = pid, time.time(), 0
        self._writer = writer
        self._next: Grant | None = None
        self._last: Grant | None = None
        self._news = asyncio.Event()

    def grant(self, client: Client) -> None:
        grant = Grant(self.serial, client.relays, client.parts)
        if grant != self._last:
            self._last = self._next = grant
            self._news.set()

    async def send_grants(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._next is not None:
                self._writer.write(protocol.encode(self._next))
                self._next = None
                await self._writer.drain()


class Service:
    """Serves until it is stopped, or until it has had no client for `idle` seconds, from its start
    on (None: for ever)."""

    def __init__(
        self, topology: Topology, files: Files, most_relays: int | None, idle: float | None
    ) -> None:
        """Serves no client yet."""
        self._topology, self._files, self._idle = topology, files, idle
        self._ledger = Ledger(graph_of(topology), most_relays)
        self._connections: dict[int, _Connection] = {}
        self._started, self._number, self._grants = time.time(), 0, 0
        self._dirty, self._over = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ordered = False
        self._door: asyncio.Future[None] | None = None  # copies for clients that see one GPU
        self._watch: asyncio.Task[None] | None = None  # waits until these copies end
        self._found_by: list[SocketFile] = []  # the sockets at which clients find the service

    async def run(self, listening: socket.socket) -> None:
        """Serves. When it returns, the socket is closed and its path removed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        self._found_by = [SocketFile(self._files.socket)]
        server = await asyncio.start_unix_server(self._accept, sock=listening)
        sharing = asyncio.create_task(self._share())
        looking = asyncio.create_task(self._end_when_lost())
        self._wait_idle()
        _log.info("serving %s on %s", self._topology.name, self._files.socket)
        try:
            await self._over.wait()
        finally:
            for each in self._found_by:
                each.remove()
            server.close()
            for task in (sharing, looking, *self._tasks):
                task.cancel()
            await asyncio.gather(sharing, looking, *self._tasks, return_exceptions=True)
            await asyncio.to_thread(_C.relay_close)
        _log.info("over")

    async def _end_when_lost(self) -> None:
        """Ends the service when a socket's path was removed, or leads to another service. New
        clients would not find this one. Its clients connect again, and then all meet in one."""
        while all(each.is_there() for each in self._found_by):
            await asyncio.sleep(LOOK)
        _log.error("this service ends: somebody has removed its socket from %s", self._files.where)
        self._over.set()

    def _wait_idle(self) -> None:
        if self._idle is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle, self._over.set)

    async def _share(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                self._ledger.share()
            except Exception:  # the books stay as they were, and no client is cut off
                _log.exception("no plan for the demands of %d clients", len(self._connections))
                continue
            self._grants += 1
            for number, connection in self._connections.items():
                connection.grant(self._ledger.clients[number])
            await asyncio.sleep(GAP)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._speak(reader, writer)
        except asyncio.CancelledError:  # the service ends
            why = "was stopped" if self._ordered else "has ended"
            _tell(writer, Refused(f"the relay service {why}", lasting=self._ordered))
        except (BadMessage, RelayRefused) as error:
            _log.warning("a client is refused: %s", error)
            _tell(writer, Refused(_printable(error), lasting=True))
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # the client is gone, or says nothing
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(OSError):
                writer.close()

    async def _open_door(self) -> None:
        """Begins to copy for clients that see one GPU. Raises RelayRefused if that is not
        possible."""
        if self._door is None:
            driver, path = config.read(os.environ).driver, str(self._files.copies)
            self._door = asyncio.ensure_future(asyncio.to_thread(_C.relay_open, driver, path))
        try:
            await asyncio.shield(self._door)
        except GlakeError as error:
            raise RelayRefused(f"no copies on GPUs that a process does not see: {error}") from error
        if self._watch is None:
            self._found_by.append(SocketFile(self._files.copies))
            self._watch = asyncio.create_task(self._end_with_the_door())

    async def _end_with_the_door(self) -> None:
        """Ends the service when it has lost a GPU. Other processes can still use that GPU, so
        clients start another service."""
        try:
            await asyncio.to_thread(_C.relay_wait)
        except GlakeError as error:
            _log.error("this service ends, so that another can serve: %s", error)
            self._over.set()

    def _stop(self) -> None:
        self._ordered = True  # clients need not start another service
        self._over.set()

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid = directory.check_peer(writer.get_extra_info("socket"))
        first = await asyncio.wait_for(_read(reader), PATIENCE)
        # Before Python 3.12, wait_for() loses a cancellation if the message has just come.
        if self._over.is_set():
            raise asyncio.CancelledError
        if isinstance(first, Ask):
            if first.what == "stop":
                _log.info("process %d stops the service", pid)
                asyncio.get_running_loop().call_soon(self._stop)
            writer.write(protocol.encode(Status(self.books())))
            await writer.drain()
            return
        if not isinstance(first, Hello):
            raise BadMessage(f"kind: {first.kind} before hello")
        self._check(first)
        if first.hidden:
            await self._open_door()
            self._check(first)  # again: others have come meanwhile
        self._number += 1
        number = self._number
        self._ledger.join(number, first.gpus, first.visible, first.seen)
        connection = self._connections[number] = _Connection(pid or first.pid, writer)
        if self._timer is not None:
            self._timer.cancel()
        _log.info("client %d: process %d, GPUs %s", number, connection.pid, first.gpus)
        sending = asyncio.create_task(connection.send_grants())
        try:
            self._dirty.set()
            with _ended_with(pid, writer):
                await self._listen(number, reader)
        finally:
            sending.cancel()
            del self._connections[number]
            self._ledger.leave(number)
            self._dirty.set()
            _log.info("client %d has left", number)
            if not self._connections:
                self._wait_idle()

    def _check(self, hello: Hello) -> None:
        if hello.version != protocol.VERSION:
            raise RelayRefused(
                f"the service speaks version {protocol.VERSION}, the client {hello.version}: "
                "stop the service (glake relayd --stop), so that a new one is started"
            )
        if hello.key != self._files.key:
            raise RelayRefused(
                f"the service is over {self._topology.name} ({self._files.key}), the client over "
                f"another topology ({hello.key}): processes that share GPUs must see the same ones "
                "in the same order (CUDA_VISIBLE_DEVICES), with the same rates"
            )
        if len(self._connections) >= MOST_CLIENTS:
            raise RelayRefused(f"the service has {MOST_CLIENTS} clients already, and takes no more")

    async def _listen(self, number: int, reader: asyncio.StreamReader) -> None:
        while True:
            message = await _read(reader)
            if not isinstance(message, Demands):
                raise BadMessage(f"kind: {message.kind} after hello")
            self._ledger.want(number, message.gpus, message.demands)
            self._connections[number].serial = message.serial
            self._dirty.set()

    def books(self) -> dict[str, Any]:
        """The clients, their demands and their parts of every limit, as JSON types."""
        limits = self._ledger.limits
        links = [i for i, (name, _) in enumerate(limits) if not _inside_gpu(name)]
        clients = []
        for number, connection in self._connections.items():
            client = self._ledger.clients[number]
            clients.append(
                {
                    "client": number,
                    "pid": connection.pid,
                    "seconds": round(time.time() - connection.since, 3),
                    "gpus": client.gpus,
                    "relays": client.relays,
                    "demands": client.demands,
                    "rate": client.rate,
                    "parts": [client.parts[i] for i in links if client.parts],
                }
            )
        return {
            "topology": self._topology.name,
            "key": self._files.key,
            "pid": os.getpid(),
            "seconds": round(time.time() - self._started, 3),
            "log": str(self._files.log),
            "grants": self._grants,
            "limits": [limits[i] for i in links],
            "clients": clients,
        }


@contextlib.contextmanager
def _ended_with(pid: int, writer: asyncio.StreamWriter) -> Iterator[None]:
    """Ends the connection when the client's process ends. A child that it forked may hold the
    connection open longer. Does nothing where the system or Python has no pidfd, or where the
    process is in another namespace (0)."""
    try:
        process = os.pidfd_open(pid)
    except (OSError, AttributeError) as error:
        if isinstance(error, ProcessLookupError):  # it has ended already
            writer.transport.abort()
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(process, writer.transport.abort)
    try:
        yield
    finally:
        loop.remove_reader(process)
        os.close(process)


def _inside_gpu(limit: str) -> bool:
    """Whether the edge is the planner's own one for copies within a GPU. No platform has such an
    edge."""
    source, _, target = limit.partition(">")
    return source == target


async def _read(reader: asyncio.StreamReader) -> Message:
    head = await reader.readexactly(protocol.HEAD_BYTES)
    text = await reader.readexactly(protocol.length(head, protocol.MOST_REQUEST))
    message: Message = protocol.decode(text, protocol.FROM_CLIENT)
    return message


def _tell(writer: asyncio.StreamWriter, message: Message) -> None:
    with contextlib.suppress(OSError):
        writer.write(protocol.encode(message))


def _printable(error: Exception) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(error))[:1000]


def serve(topology: Topology, where: Files, most_relays: int | None, idle: float | None) -> bool:
    """Serves until the service ends. False: another service has this topology already.

    Raises OSError if the socket cannot be made.
    """
    held = lock(where.lock)
    if held is None:
        return False
    before = os.umask(0o077)  # for the log and the socket
    handler = RotatingFileHandler(where.log, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    try:
        asyncio.run(_run(topology, where, most_relays, idle, _listening(where)))
    finally:
        os.umask(before)
        os.close(held)
        _log.removeHandler(handler)
        handler.close()
    return True


async def _run(
    topology: Topology,
    where: Files,
    most_relays: int | None,
    idle: float | None,
    listening: socket.socket,
) -> None:
    await Service(topology, where, most_relays, idle).run(listening)


def _listening(where: Files) -> socket.socket:
    """Makes the service's socket. A socket that a killed service left is removed first. The caller
    holds the lock."""
    with contextlib.suppress(FileNotFoundError):
        where.socket.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(where.socket))
    finally:
        os.umask(before)
    return listening
