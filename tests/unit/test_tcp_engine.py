"""The TCP engine between nodes, without nodes: what it does for honest peers, and what strangers,
lost peers and peers that stand still can do to it."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glake.errors import InvalidArgument, PackageMissing, PeerFailed, PeerRefused
from glake.transfer.nodes import settings, tcp_format, tcp_server
from glake.transfer.nodes.mooncake import Mooncake
from glake.transfer.nodes.nixl import Nixl
from glake.transfer.nodes.tcp import Tcp
from glake.transfer.nodes.tcp_format import ANSWER, GREETING, MAGIC, READ, REFUSED, REQUEST
from glake.transfer.nodes.tcp_reads import MOST_CONNECTIONS

SIZE = 8 << 20
PATIENCE = 10.0


class End:
    """An engine with its memory."""

    def __init__(self, host: str = "127.0.0.1", seed: int | None = None) -> None:
        self.memory = np.zeros(SIZE, "uint8")
        if seed is not None:
            self.memory[:] = np.random.default_rng(seed).integers(0, 256, SIZE, "uint8")
        self.engine = Tcp()
        self.engine.open(self.address, SIZE, host)

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.metadata())
        return found

    def read(self, peer: str, remote: int, size: int = SIZE, at: int = 0) -> Any:
        return self.engine.read(peer, self.address + at, remote, size)


class FakePeer:
    """A peer whose every byte the test sends itself."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.id, self.token, self.address = "ab" * 16, "cd" * 32, 1 << 20

    def metadata(self, **changes: Any) -> bytes:
        told = {
            "host": "127.0.0.1",
            "port": self.listener.getsockname()[1],
            "id": self.id,
            "token": self.token,
            "address": self.address,
            "size": SIZE,
        }
        return json.dumps(told | changes).encode()

    def accept(self) -> socket.socket:
        """A reader's connection, after its greeting and first request."""
        connection, _ = self.listener.accept()
        connection.settimeout(PATIENCE)
        greeting = received(connection, GREETING.size)
        assert greeting.startswith(MAGIC) and greeting.endswith(bytes.fromhex(self.token))
        assert received(connection, REQUEST.size) == REQUEST.pack(self.address, SIZE)
        return connection


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer if the connection ends."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while len(got) < size and (part := connection.recv(size - len(got))):
            got += part
    return got


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def whole(read: Any) -> None:
    """Waits until a read is over."""
    end = time.monotonic() + PATIENCE
    while not read.over():
        assert time.monotonic() < end
        read.wait(0.01)


def failure(read: Any) -> str:
    """Why a read fails."""
    with pytest.raises(PeerFailed) as caught:
        whole(read)
    with pytest.raises(PeerFailed):  # and it stays so
        read.over()
    return str(caught.value)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "glake-tcp"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = descriptors(), threads()
    yield
    assert (descriptors(), threads()) == before


@pytest.fixture
def here() -> Iterator[End]:
    made = End()
    yield made
    made.engine.close()


@pytest.fixture
def there() -> Iterator[End]:
    made = End(seed=1)
    yield made
    made.engine.close()


@pytest.fixture
def peer(here: End, there: End) -> str:
    """What `here` calls `there`. Each knows the other, as two nodes do."""
    there.engine.add(here.engine.metadata())
    return here.engine.add(there.engine.metadata())


@pytest.fixture
def fake() -> Iterator[FakePeer]:
    made = FakePeer()
    yield made
    made.listener.close()


def dial(end: End, greeting: bytes) -> socket.socket:
    """A connection to an engine on which the test sends what it likes."""
    made = socket.create_connection((end.told["host"], end.told["port"]), PATIENCE)
    made.sendall(greeting)
    return made


def greeting(server: End, reader: End) -> bytes:
    return GREETING.pack(
        MAGIC, bytes.fromhex(reader.told["id"]), bytes.fromhex(server.told["token"])
    )


def test_bytes_arrive_both_ways(here: End, there: End, peer: str) -> None:
    whole(here.read(peer, there.address))
    assert (here.memory == there.memory).all()
    here.memory[:] = 7
    whole(here.read(peer, there.address + SIZE - 1, 1, 3))  # the last byte
    assert here.memory[3] == there.memory[-1] and (here.memory[4:] == 7).all()
    whole(there.read(here.told["id"], here.address))
    assert (there.memory == here.memory).all()


def test_more_reads_than_connections(here: End, there: End, peer: str) -> None:
    part = SIZE // 64
    reads = [here.read(peer, there.address + i * part, part, i * part) for i in range(64)]
    workers = [threading.Thread(target=whole, args=(read,)) for read in reads]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(read.over() for read in reads) and (here.memory == there.memory).all()
    assert len(there.engine._server._serving) <= MOST_CONNECTIONS


def test_a_read_waits_for_a_connection(here: End, fake: FakePeer) -> None:
    peer = here.engine.add(fake.metadata())
    reads = [here.read(peer, fake.address) for _ in range(MOST_CONNECTIONS + 1)]
    assert not any(read.over() for read in reads)
    with contextlib.ExitStack() as used:
        first = [used.enter_context(fake.accept()) for _ in range(MOST_CONNECTIONS)][0]
        fake.listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            fake.listener.accept()
        began = time.monotonic()
        reads[-1].wait(0.1)
        assert time.monotonic() - began >= 0.09 and not reads[-1].over()
        sender = threading.Thread(
            target=first.sendall, args=(ANSWER.pack(READ, SIZE) + b"\1" * SIZE,)
        )
        sender.start()
        whole(reads[0])
        sender.join()
        assert not reads[-1].over()  # it goes on that connection now
        assert received(first, REQUEST.size) == REQUEST.pack(fake.address, SIZE)
        here.engine.close()


def test_a_connection_is_used_again(here: End, there: End, peer: str) -> None:
    for _ in range(20):
        whole(here.read(peer, there.address, 100))
    assert len(there.engine._server._serving) == 1


def test_idle_threads_sleep(here: End, there: End, peer: str) -> None:
    def wakes() -> dict[int | None, str]:
        return {
            each.native_id: next(
                line
                for line in Path(f"/proc/self/task/{each.native_id}/status").read_text().split("\n")
                if line.startswith("voluntary")
            )
            for each in threads()
        }

    whole(here.read(peer, there.address, 100))
    end = time.monotonic() + PATIENCE
    before: dict[int | None, str] = {}
    while (now := wakes()) != before:  # a busy machine lets them begin to sleep later
        assert time.monotonic() < end
        before = now
        time.sleep(0.5)
    assert len(before) == 3  # two listen, one serves


def test_a_peer_that_forgot_us(here: End, there: End, peer: str) -> None:
    """It has closed the connections that we keep. New ones are made."""
    whole(here.read(peer, there.address, 100))
    there.engine.remove(here.told["id"])
    until(lambda: not there.engine._server._serving)
    failure(here.read(peer, there.address, 100))  # it does not know us any more
    there.engine.add(here.engine.metadata())
    whole(here.read(peer, there.address))
    assert (here.memory == there.memory).all()


def test_who_is_not_let_in(here: End, there: End, peer: str) -> None:
    right = greeting(there, here)
    for wrong in (
        MAGIC + bytes(48),
        right[:-1] + bytes([right[-1] ^ 1]),  # a bit of the token
        b"glaketc0" + right[8:],
        MAGIC + bytes(16) + right[24:],  # the right token from one who is no peer
        b"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: */*\r\n\r\n",
        os.urandom(1 << 16),
    ):
        with dial(there, wrong) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(REQUEST.pack(there.address, 100))
            assert received(stranger, 1) == b""
    with dial(there, right + REQUEST.pack(there.address, 100)) as honest:
        answer = received(honest, ANSWER.size + 100)
    assert answer == ANSWER.pack(READ, 100) + there.memory[:100].tobytes()


@pytest.mark.parametrize(
    ("begin", "size"),
    [(-1, 1), (0, 0), (0, SIZE + 1), (SIZE, 1), (SIZE - 1, 2), (None, 1 << 63), (0, (1 << 64) - 1)],
)
def test_other_memory_is_refused(
    here: End, there: End, peer: str, begin: int | None, size: int
) -> None:
    address = (1 << 64) - 1 if begin is None else there.address + begin
    asked = greeting(there, here) + REQUEST.pack(address, size)
    with dial(there, asked) as reader:
        assert received(reader, 100) == ANSWER.pack(REFUSED, 0)
    with pytest.raises(PeerFailed, match="outside the registered memory"):
        here.read(peer, address, size)


def test_a_read_leaves_our_memory_alone(here: End, there: End, peer: str) -> None:
    for at, size in ((-1, 1), (SIZE, 1), (1, SIZE)):
        with pytest.raises(PeerFailed, match="outside the registered memory"):
            here.read(peer, there.address, size, at)


def test_a_refusal_is_told(here: End, fake: FakePeer) -> None:
    read = here.read(here.engine.add(fake.metadata()), fake.address)
    assert not read.over()
    with fake.accept() as connection:
        connection.sendall(ANSWER.pack(REFUSED, 0))
        assert "refuses a read outside" in failure(read)


def test_a_malformed_answer_ends_the_read(here: End, fake: FakePeer) -> None:
    peer = here.engine.add(fake.metadata())
    for answer in (ANSWER.pack(READ, SIZE + 1), ANSWER.pack(9, SIZE), b"HTTP/1.1 400 Bad Request"):
        read = here.read(peer, fake.address)
        assert not read.over()
        with fake.accept() as connection:
            connection.sendall(answer + bytes(100))
            assert "the other node answers" in failure(read)
    assert not here.memory.any()


def test_strangers_that_say_nothing(
    here: End, there: End, peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_server, "_GREETING_SECONDS", 0.3)
    with dial(there, b"gl") as half, dial(there, b"") as silent:
        assert received(half, 1) == received(silent, 1) == b""
    monkeypatch.setattr(tcp_server, "_GREETING_SECONDS", 60.0)
    most = tcp_server._MOST_STRANGERS
    strangers = [dial(there, b"") for _ in range(most + 8)]
    for oldest in strangers[:8]:
        assert received(oldest, 1) == b""
    whole(here.read(peer, there.address))
    assert len(there.engine._server._strangers) <= most
    began = time.monotonic()
    there.engine.close()
    assert time.monotonic() - began < 5
    for each in strangers:
        each.close()


def test_a_reader_has_so_many_connections(here: End, there: End, peer: str) -> None:
    most = tcp_server._MOST_OF_A_READER
    readers = []
    for _ in range(most):
        readers.append(dial(there, greeting(there, here) + REQUEST.pack(there.address, 1)))
        assert len(received(readers[-1], ANSWER.size + 1)) == ANSWER.size + 1
    with dial(there, greeting(there, here)) as another:
        assert received(another, 1) == b""
    for each in readers:
        each.close()
    until(lambda: not there.engine._server._serving)
    whole(here.read(peer, there.address, 100))


def test_nobody_listens_any_more(here: End, fake: FakePeer) -> None:
    peer = here.engine.add(fake.metadata())
    fake.listener.close()
    told = failure(here.read(peer, fake.address))
    assert "refused" in told and "give it a host= that this one reaches" in told


@pytest.mark.parametrize("sent", [0, 5, ANSWER.size, ANSWER.size + SIZE // 2])
@pytest.mark.parametrize("reset", [False, True])
def test_a_killed_peer_ends_its_reads(here: End, fake: FakePeer, sent: int, reset: bool) -> None:
    read = here.read(here.engine.add(fake.metadata()), fake.address)
    assert not read.over()
    connection = fake.accept()
    answer = ANSWER.pack(READ, SIZE) + b"\1" * SIZE
    sender = threading.Thread(target=connection.sendall, args=(answer[:sent],))
    sender.start()
    until(lambda: not read.over() and not sender.is_alive())
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    began = time.monotonic()
    failure(read)
    assert time.monotonic() - began < 1
    assert not here.memory[max(0, sent - ANSWER.size) :].any()


@pytest.mark.parametrize("way", ["cancel", "remove", "close"])
def test_what_comes_late_never_lands(here: End, there: End, fake: FakePeer, way: str) -> None:
    """Half of a read has come. It is given up, and then the other half comes."""
    peer = here.engine.add(fake.metadata())
    read = here.read(peer, fake.address)
    assert not read.over()
    with fake.accept() as connection:
        connection.sendall(ANSWER.pack(READ, SIZE) + b"\1" * 1000)
        until(lambda: not read.over() and bool(here.memory[999]))
        {
            "cancel": read.cancel,
            "remove": lambda: here.engine.remove(peer),
            "close": here.engine.close,
        }[way]()
        here.memory[:] = 0x5A
        with contextlib.suppress(OSError):  # the connection is closed
            connection.sendall(b"\2" * (SIZE - 1000))
        assert "given up" in failure(read)
        time.sleep(0.1)
        assert (here.memory == 0x5A).all()
        if way != "close":
            there.engine.add(here.engine.metadata())
            whole(here.read(here.engine.add(there.engine.metadata()), there.address))
            assert (here.memory == there.memory).all()
    if way != "cancel":
        with pytest.raises(PeerFailed):
            here.read(peer, fake.address)


def test_closing_while_threads_read(here: End, there: End, peer: str) -> None:
    """When close() has returned, no thread writes to the memory."""
    failed = []
    begun = threading.Barrier(9)

    def work(number: int) -> None:
        begun.wait()
        try:
            while True:
                whole(here.read(peer, there.address, SIZE // 8, number * (SIZE // 8)))
        except PeerFailed:
            failed.append(number)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    begun.wait()
    until(lambda: bool(here.memory.any()))
    here.engine.close()
    here.memory[:] = 0x5A
    for worker in workers:
        worker.join(PATIENCE)
    assert sorted(failed) == list(range(8)) and (here.memory == 0x5A).all()


@pytest.mark.parametrize("way", ["remove", "close"])
def test_a_reader_that_stands_still(here: End, there: End, way: str) -> None:
    """It reads no byte of what it asked for. The thread that serves it ends nevertheless."""
    there.engine.add(here.engine.metadata())
    with dial(there, greeting(there, here)) as reader:
        reader.sendall(REQUEST.pack(there.address, SIZE))
        reader.sendall(REQUEST.pack(there.address, SIZE))
        until(lambda: bool(there.engine._server._serving))
        time.sleep(0.2)  # now it is in sendall()
        began = time.monotonic()
        if way == "remove":
            there.engine.remove(here.told["id"])
            until(lambda: not there.engine._server._serving)
        there.engine.close()
        assert time.monotonic() - began < 5


def test_a_peer_that_stands_still_holds_up_no_others(
    here: End, there: End, peer: str, fake: FakePeer
) -> None:
    still = here.read(here.engine.add(fake.metadata()), fake.address)
    assert not still.over()
    with fake.accept():
        began = time.monotonic()
        still.wait(0.1)
        assert time.monotonic() - began >= 0.09  # it sleeps until there is news
        whole(here.read(peer, there.address))
        assert not still.over()
        here.engine.close()
        assert time.monotonic() - began < 5 and "given up" in failure(still)


def test_a_forked_child_has_none(others: set[str], here: End, there: End, peer: str) -> None:
    """It keeps no descriptor, so a peer sees the end of the parent though the child lives on."""
    whole(here.read(peer, there.address, 100))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            here.read(peer, there.address, 100)
        except PeerFailed:
            kept = sockets() - others
            here.engine.close()
            code = 7 if not kept else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    whole(here.read(peer, there.address))
    assert (here.memory == there.memory).all()


def sockets() -> set[str]:
    """The TCP sockets of this process, as the system names them."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(fd))) as each:
                    if each.family in (socket.AF_INET, socket.AF_INET6):
                        found.add(name)
    return found


@pytest.fixture
def others() -> set[str]:
    """The TCP sockets that other tests of this process have left open."""
    return sockets()


@pytest.mark.parametrize("side", ["reader", "server"])
def test_no_signal_ends_the_process(here: End, there: End, peer: str, side: str) -> None:
    """Many programs let SIGPIPE end them. A peer that is gone must not."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            code = 7 if meet_a_dead_peer(side) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def meet_a_dead_peer(side: str) -> bool:
    """Whether the process outlives a connection that ends while it sends."""
    mine, reader, fake = End(), End(), FakePeer()
    if side == "server":
        mine.engine.add(reader.engine.metadata())
        with dial(mine, greeting(mine, reader)) as still:
            still.sendall(REQUEST.pack(mine.address, SIZE) * 4)
            still.recv(1)
            time.sleep(0.1)  # now it is in sendall()
            mine.engine.remove(reader.told["id"])
            until(lambda: not mine.engine._server._serving)
        return True
    peer = mine.engine.add(fake.metadata())
    read = mine.read(peer, fake.address)
    assert not read.over()
    with fake.accept() as connection:
        answer = ANSWER.pack(READ, SIZE) + bytes(SIZE)
        sender = threading.Thread(target=connection.sendall, args=(answer,))
        sender.start()
        whole(read)
        sender.join()
        (kept,) = mine.engine._peers[peer]._idle
        kept.is_open = lambda: True  # type: ignore[method-assign] # it ends after this check
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.1)
    with contextlib.suppress(OSError):
        kept.socket.recv(1)  # takes the reset's error, so the next send() is one to a closed pipe
    return bool(failure(mine.read(peer, fake.address)))


def test_ipv6() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").read_text().strip():
        pytest.skip("this machine has no IPv6")
    here, there = End("::1"), End("::1", seed=2)
    assert there.told["host"] == "::1"
    there.engine.add(here.engine.metadata())
    whole(here.read(here.engine.add(there.engine.metadata()), there.address))
    assert (here.memory == there.memory).all()
    here.engine.close()
    there.engine.close()


def test_where_it_listens(here: End) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", here.told["port"]), 5)
    everywhere = End("0.0.0.0")
    assert everywhere.told["host"] != "0.0.0.0"
    socket.create_connection(("127.0.0.2", everywhere.told["port"]), 5).close()
    everywhere.engine.close()
    for host in (
        "192.0.2.1",
        "no such host",
        "x" * 300,
    ):  # an address that documents use, and nobody has
        with pytest.raises(PeerFailed, match="give the node host=, an address of this machine"):
            End(host)
    with pytest.raises(InvalidArgument, match="another node's"):
        here.engine.open(here.address, SIZE, "127.0.0.1")


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\xff",
        b"[" * 900,
        b"[]",
        b"{}",
        b"x" * 2000,
        {"more": 1},
        {"host": "localhost"},
        {"host": 7},
        {"host": "127.0.0.1\n"},
        {"port": 0},
        {"port": 65536},
        {"port": "80"},
        {"port": True},
        {"id": "ab"},
        {"id": "zz" * 16},
        {"token": "cd" * 31},
        {"token": None},
        {"address": 0},
        {"address": 1 << 63},
        {"address": (1 << 63) - 1},
        {"size": 0},
        {"size": 1.5},
    ],
)
def test_malformed_metadata(here: End, fake: FakePeer, given: Any) -> None:
    metadata = given if isinstance(given, bytes) else fake.metadata(**given)
    with pytest.raises(PeerRefused, match="not that of a TCP engine") as caught:
        here.engine.add(metadata)
    assert "cdcd" not in str(caught.value)
    assert not here.engine._peers


def test_nobody_takes_the_place_of_a_peer(here: End, there: End, peer: str, fake: FakePeer) -> None:
    with pytest.raises(PeerRefused, match="another peer"):
        here.engine.add(fake.metadata(id=there.told["id"]))
    assert here.engine.add(there.engine.metadata()) == peer
    whole(here.read(peer, there.address))
    assert (here.memory == there.memory).all()


def test_metadata_names_the_memory(here: End) -> None:
    found = tcp_format.Metadata.read(here.engine.metadata())
    assert (found.address, found.size) == (here.address, SIZE)
    another = End()
    assert another.told["token"] != found.token and another.told["id"] != found.id
    another.engine.close()
    another.engine.close()
    with pytest.raises(PeerFailed, match="closed"):
        another.engine.add(here.engine.metadata())


def test_which_engine_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not settings.has_rdma(str(tmp_path / "none")) and not settings.has_rdma(str(tmp_path))
    (tmp_path / "mlx5_0").touch()
    assert settings.has_rdma(str(tmp_path))
    installed = {"nixl", "mooncake", "mooncake.engine"}
    monkeypatch.setattr("glake.extras.present", lambda module: module in installed)
    monkeypatch.setattr(settings, "has_rdma", lambda: False)
    monkeypatch.setenv("UCX_TLS", "rc")  # UCX's own settings choose no engine
    assert type(settings.backend_of(None)) is Tcp
    monkeypatch.setattr(settings, "has_rdma", lambda: True)
    assert type(settings.backend_of(None)) is Nixl
    assert type(settings.backend_of("tcp")) is Tcp
    installed.remove("nixl")
    mooncake = settings.backend_of(None)
    assert isinstance(mooncake, Mooncake) and mooncake._protocol == "rdma"
    installed.clear()
    with pytest.raises(PackageMissing, match=r'with RDMA .*glake\[nodes\].* or give backend="tcp"'):
        settings.backend_of(None)


def test_memory_is_what_it_was_given() -> None:
    """The engine reads the memory itself, and no copy."""
    here, there = End(), End()
    there.engine.add(here.engine.metadata())
    peer = here.engine.add(there.engine.metadata())
    ctypes.memset(there.address + 10, 3, 5)
    whole(here.read(peer, there.address, 20))
    assert here.memory[:20].tolist() == [0] * 10 + [3] * 5 + [0] * 5
    here.engine.close()
    there.engine.close()
