"""Two processes stand for two nodes, each with its own GPUs, joined by TCP on loopback."""

import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory import MIB, Device

from glake import errors
from glake import transfer as t
from glake.metrics.reading import Reading
from glake.transfer.nodes import NetworkRead, messages
from glake.transfer.nodes import carrier as carriers

WORKER = Path(__file__).resolve().parents[1] / "node_worker.py"
SECRET = "not for anybody else"
REFUSAL = b'{"kind": "refused", "reason": "another secret"}'  # of a message with a wrong MAC
BACKEND = os.environ.get("NODE_BACKEND", "tcp")
KILLS_A_READER = pytest.mark.skipif(
    BACKEND == "nixl", reason="over TCP, UCX ends the process from which a killed peer was reading"
)
SETTINGS: dict[str, Any] = {
    "secret": SECRET, "backend": BACKEND, "chunk": "256KiB", "depth": 3, "timeout": 20,
    "host": "127.0.0.1",
}  # fmt: skip


class Other:
    """The other node's process."""

    def __init__(self, **settings: Any) -> None:
        given = SETTINGS | {"listen": "127.0.0.1:0"} | settings
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.address = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = ""
        while not line.startswith(">> "):
            line = self.process.stdout.readline()
            assert line, "the other node has ended"
        return line[3:].strip()

    def do(self, code: str) -> str:
        """The value of the code in the other process."""
        assert self.process.stdin is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        return self.line()

    def expose(self, name: str, size: int, gpu: int | None, seed: int, writable: bool) -> None:
        """Exposes random bytes on one of its GPUs, or in its host memory."""
        made = f"np.random.default_rng({seed}).integers(0, 256, {size}, 'uint8')"
        if gpu is not None:
            made = f"Device(({size},), gpu={gpu}).set({made})"
        assert self.do(f"kept.update({{{name!r}: {made}}})") == "None"
        assert self.do(f"node.expose({name!r}, kept[{name!r}], {writable})") == "None"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def pattern(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, "uint8")


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.end()


@pytest.fixture
def doomed() -> Iterator[Other]:
    made = Other()
    yield made
    made.end()


@pytest.fixture
def node() -> Iterator[t.Node]:
    with t.Node(**SETTINGS) as made:
        yield made


def settled(node: t.Node, **expected: int) -> dict[str, int]:
    """The node's statistics, once they are as expected: threads end its work a little later."""
    end = time.monotonic() + 10
    while True:
        found = node.stats()
        if all(found[name] == value for name, value in expected.items()):
            return found
        assert time.monotonic() < end, (expected, found)
        time.sleep(0.01)


@pytest.mark.parametrize("gpu", [None, 5])
@pytest.mark.parametrize("here", [None, 2])
@pytest.mark.parametrize("checksum", [False, True])
def test_read(
    other: Other, node: t.Node, gpu: int | None, here: int | None, checksum: bool
) -> None:
    size = 3 * MIB + 12345
    name = f"read-{gpu}-{here}-{checksum}"
    other.expose(name, size, gpu, 1, False)
    dst: Any = np.zeros(size, "uint8") if here is None else Device((size,), gpu=here)
    with node.connect(other.address) as peer:
        assert peer.size(name) == size
        going = peer.read(name, dst, checksum=checksum)
        assert going.wait(60) is going and going.done() and going.progress() == (size, size)
        part = np.zeros(1000, "uint8")
        peer.read(name, part, offset=MIB - 10, nbytes=999).wait(60)
    got = dst if here is None else dst.get()
    assert (got == pattern(size, 1)).all()
    assert (part[:999] == pattern(size, 1)[MIB - 10 : MIB + 989]).all() and part[999] == 0
    found = settled(node, peers=0)
    assert (found["reads"], found["failed"], found["under_way"]) == (2, 0, 0)
    assert found["network_read_bytes"] == size + 999
    assert found["gpu_bytes"] == (size if here is not None else 0)
    assert found["buffer_bytes"] == 2 * 3 * MIB // 4


@pytest.mark.parametrize("gpu", [None, 6])
@pytest.mark.parametrize("checksum", [False, True])
def test_write(other: Other, node: t.Node, gpu: int | None, checksum: bool) -> None:
    size, name = 2 * MIB + 77, f"write-{gpu}-{checksum}"
    other.expose(name, size, gpu, 2, True)
    data = pattern(MIB + 9, 3)
    with node.connect(other.address) as peer:
        peer.write(name, Device((len(data),), gpu=1).set(data), 500, checksum=checksum).wait(60)
        back = np.zeros(size, "uint8")
        peer.read(name, back).wait(60)
    expected = pattern(size, 2)
    expected[500 : 500 + len(data)] = data
    assert (back == expected).all()
    assert settled(node, peers=0)["network_sent_bytes"] == len(data)


def test_tensors_of_torch(other: Other, node: t.Node) -> None:
    import torch

    other.expose("floats", 4 * 1000, None, 4, True)
    with node.connect(other.address) as peer:
        tensor = torch.arange(1000, dtype=torch.float32)
        peer.write("floats", tensor).wait(60)
        back = torch.zeros(10, 100)
        version = back._version
        peer.read("floats", back).wait(60)
    assert torch.equal(back.view(-1), tensor) and back._version > version


def test_many_at_once_both_ways(other: Other, node: t.Node) -> None:
    """Two connections, each used by several threads, share three buffers."""
    size = MIB
    other.expose("source", size, 3, 5, False)
    for i in range(8):
        other.expose(f"sink-{i}", size, i, 6, True)
    expected = pattern(size, 5)
    with node.connect(other.address) as one, node.connect(other.address) as two:
        into = [np.zeros(size, "uint8") for _ in range(8)]
        going = [(one, two)[i % 2].read("source", each) for i, each in enumerate(into)]
        going += [(two, one)[i % 2].write(f"sink-{i}", expected) for i in range(8)]
        for each in going:
            each.wait(60)
        back = np.zeros(size, "uint8")
        for i in range(8):
            one.read(f"sink-{i}", back).wait(60)
            assert (back == expected).all()
    assert all((each == expected).all() for each in into)
    assert settled(node, peers=0)["under_way"] == 0


def test_both_legs_at_once(other: Other, node: t.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one piece is copied from its buffer to the GPU, another comes over the network."""
    size = 32 * MIB
    legs = {"fetch": 0, "copy": 0}
    counting = threading.Lock()
    copying, fetched_meanwhile = threading.Event(), threading.Event()
    other.expose("overlapping", size, 0, 5, False)

    def noted(name: str, leg: Callable[..., Any]) -> Callable[..., Any]:
        def begins(*arguments: Any, **named: Any) -> None:
            with counting:
                legs[name] += 1
                first = legs[name] == 1
            if name == "fetch" and copying.is_set():
                fetched_meanwhile.set()
            if name == "copy" and first:  # it ends only after a fetch began beside it
                copying.set()
                assert fetched_meanwhile.wait(60)
            leg(*arguments, **named)

        return begins

    for name in legs:
        monkeypatch.setattr(node._carrier, name, noted(name, getattr(node._carrier, name)))
    with node.connect(other.address) as peer:
        peer.read("overlapping", Device((size,), gpu=2)).wait(60)
    assert legs == {"fetch": 128, "copy": 128}


def test_nodes_that_wait_for_one_another(other: Other) -> None:
    """Each reads from the other with all its buffers, and serves the other with separate ones."""
    size = 4 * MIB
    other.expose("theirs", size, 0, 7, False)
    with t.Node(**SETTINGS, listen="127.0.0.1:0") as node:
        mine = pattern(size, 8)
        node.expose("mine", mine)
        assert other.do(f"kept.update(peer=node.connect({node.address!r}))") == "None"
        assert other.do(f"kept.update(into=np.zeros({size}, 'uint8'))") == "None"
        with node.connect(other.address) as peer:
            into = np.zeros(size, "uint8")
            assert other.do("kept.update(going=kept['peer'].read('mine', kept['into']))") == "None"
            peer.read("theirs", into).wait(60)
        assert "done" in other.do("kept['going'].wait(60)")
        crc = other.do("__import__('zlib').crc32(kept['into'])")
        assert int(crc) == zlib.crc32(mine)
        assert other.do("kept['peer'].close()") == "None"
    assert (into == pattern(size, 7)).all()


def test_wrong_requests(other: Other, node: t.Node) -> None:
    other.expose("small", 1000, 0, 9, False)
    with node.connect(other.address) as peer:
        into = np.zeros(100, "uint8")
        for call, words in (
            (lambda: peer.read("none such", into), "nothing is exposed as 'none such'"),
            (lambda: peer.size(""), "a printable text of 1 to 200"),
            (lambda: peer.read("small", into, 901), "of which .* exposes 1000"),
            (lambda: peer.read("small", into, -1), "100 bytes from -1"),
            (lambda: peer.read("small", into, 0, 101), "nbytes 101: 0 to the 100"),
            (lambda: peer.read("small", np.zeros((10, 10), "uint8")[:, 1]), "has gaps"),
            (lambda: peer.write("small", into), "not exposed 'small' as writable"),
            (lambda: node.expose("x", b"constant", writable=True), "read-only"),
            (lambda: node.hide("x"), "nothing is exposed"),
            (lambda: node.connect("nowhere"), "host:port"),
        ):
            with pytest.raises(errors.InvalidArgument, match=words):
                call()
        assert peer.read("small", np.zeros(0, "uint8")).wait(5).done()
        assert other.do("node.hide('small')") == "None"
        with pytest.raises(errors.InvalidArgument, match="nothing is exposed"):
            peer.read("small", into)
    assert settled(node, peers=0)["failed"] == 0
    with pytest.raises(errors.PeerLost, match="connect again"):
        peer.size("small")


@pytest.mark.parametrize("ways", [("read",), pytest.param(("read", "write"), marks=KILLS_A_READER)])
def test_a_killed_peer_ends_transfers(doomed: Other, node: t.Node, ways: tuple[str, ...]) -> None:
    """For a write the peer reads."""
    size = 64 * MIB
    doomed.expose("large", size, 0, 10, True)
    peer = node.connect(doomed.address)
    going = [getattr(peer, way)("large", np.zeros(size, "uint8")) for way in ways]
    while not any(each.progress()[0] for each in going):
        time.sleep(0.001)
    doomed.process.kill()
    began = time.monotonic()
    for each in going:
        with pytest.raises(errors.PeerLost):
            each.wait(20)
    assert time.monotonic() - began < 10
    found = settled(node, peers=0, under_way=0)
    assert (found["failed"], found["lost_peers"]) == (len(ways), 1)
    with pytest.raises(errors.PeerLost, match="connect again"):
        peer.read("large", np.zeros(1, "uint8"))
    peer.close()
    again = Other()
    try:  # the node and its buffers still work
        again.expose("large", MIB, 0, 11, False)
        into = np.zeros(MIB, "uint8")
        with node.connect(again.address) as peer:
            peer.read("large", into).wait(60)
        assert (into == pattern(MIB, 11)).all()
    finally:
        again.end()


def test_a_peer_that_stands_still(doomed: Other) -> None:
    doomed.expose("large", 64 * MIB, 0, 10, False)
    with t.Node(**SETTINGS | {"timeout": 2}) as node:
        stand_still(doomed, node)

        memory = node._carrier._memory
    # The engine ended with the node, so nothing that still comes is written.
    ctypes.memset(memory, 0x5A, len(memory))
    if doomed.process.poll() is None:
        os.kill(doomed.process.pid, signal.SIGCONT)
    time.sleep(0.5)
    assert bytes(memory) == b"\x5a" * len(memory)


def stand_still(doomed: Other, node: t.Node) -> None:
    peer = node.connect(doomed.address)
    reading = peer.read("large", np.zeros(64 * MIB, "uint8"))
    while not reading.progress()[0]:
        time.sleep(0.001)
    os.kill(doomed.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, doomed.process.pid, os.WSTOPPED)
    began = time.monotonic()
    try:
        with pytest.raises(errors.PeerLost):
            reading.wait(60)
        assert time.monotonic() - began < 3 * 2 + 10
        # Whichever wait was over first is still the reason.
        with pytest.raises(errors.PeerLost, match="sent nothing for 2 s|not answered for 6 s"):
            peer.size("large")
        peer.close()
        settled(node, peers=0, under_way=0)
    finally:
        if BACKEND == "mooncake":  # its close() waits for reads
            doomed.process.kill()


def test_a_peer_that_does_not_answer(doomed: Other) -> None:
    with t.Node(**SETTINGS | {"timeout": 0.5}) as node, node.connect(doomed.address) as peer:
        os.kill(doomed.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, doomed.process.pid, os.WSTOPPED)
        for more in ("", ": connect again"):
            with pytest.raises(errors.PeerLost, match=f"has not answered for 1.5 s{more}$"):
                peer.size("large")
            settled(node, peers=0)


@pytest.mark.parametrize("way", [pytest.param("read", marks=KILLS_A_READER), "write"])
def test_a_killed_client_leaves_nothing(node: t.Node, way: str) -> None:
    with t.Node(**SETTINGS, listen="127.0.0.1:0") as served:
        memory = Device((64 * MIB,), gpu=1).set(pattern(64 * MIB, 1))
        served.expose("large", memory, writable=True)
        client = Other()
        client.do(f"kept.update(peer=node.connect({served.address!r}))")
        client.do("kept.update(buffer=np.zeros(64 << 20, 'uint8'))")
        before = served.stats()
        client.do(f"kept.update(going=kept['peer'].{way}('large', kept['buffer']))")
        while served.stats()["gpu_bytes"] == before["gpu_bytes"]:
            time.sleep(0.001)
        client.end()
        settled(served, peers=0)
        served.hide("large")
        small = np.arange(100, dtype="uint8")
        served.expose("small", small)
        with node.connect(served.address or "") as peer:
            into = np.zeros(100, "uint8")
            peer.read("small", into).wait(60)
        assert (into == small).all()
        assert len(set(served._carrier.serving._free)) == SETTINGS["depth"]


def test_a_late_read_never_lands(node: t.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer of a read that does not end is not used again until the read has ended."""

    class Late(NetworkRead):
        done = False

        def over(self) -> bool:
            return self.done

    with t.Node(**SETTINGS | {"timeout": 0.3}, listen="127.0.0.1:0") as served:
        served.expose("x", np.ones(10, "uint8"))
        late = Late()
        with node.connect(served.address or "") as peer:
            monkeypatch.setattr(node._carrier.backend, "read", lambda *_: late)
            monkeypatch.setattr(peer, "_timeout", 0.3)
            with pytest.raises(errors.PeerLost):
                peer.read("x", np.zeros(10, "uint8")).wait(20)
        assert settled(node, peers=0)["buffers_held"] == 1
        slots = node._carrier.fetching
        assert len(slots._free) == SETTINGS["depth"] - 1
        taken = [slots.take(1) for _ in slots._free[:]]
        with pytest.raises(errors.BusyTimeout, match="1 are kept"):
            slots.take(0.01)
        late.done = True
        taken.append(slots.take(5))
        assert node.stats()["buffers_held"] == 0 and len(set(taken)) == SETTINGS["depth"]
        for each in taken:
            slots.give_back(each)


@pytest.mark.parametrize("way", ["read", "write"])
def test_changed_bytes_are_read_again(
    node: t.Node, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with t.Node(**SETTINGS, listen="127.0.0.1:0") as served:
        there, here = pattern(1000, 1), pattern(1000, 2)
        served.expose("x", there, writable=True)
        reader = node if way == "read" else served
        fetch, bad = reader._carrier.fetch, [1]

        def damaging(slots: Any, slot: int, *rest: Any) -> None:
            fetch(slots, slot, *rest)
            if bad[0]:
                bad[0] -= 1
                ctypes.memmove(slot + 3, b"\x00\x01\x02", 3)

        monkeypatch.setattr(reader._carrier, "fetch", damaging)
        with node.connect(served.address or "") as peer:
            peer_call: Callable[..., Any] = getattr(peer, way)
            peer_call("x", here, checksum=True).wait(20)
            assert (here == there).all()
            assert node.stats()["retries"] == 1
            bad[0] = carriers.RETRIES + 1
            with pytest.raises(errors.PeerFailed, match="checksums differ"):
                peer_call("x", here, checksum=True).wait(20)
        assert settled(node, peers=0)["failed"] == 1


def test_who_is_let_in(other: Other, tmp_path: Path) -> None:
    for settings, words in (
        ({"listen": "127.0.0.1:0", "secret": None}, "without a secret"),
        ({"secret": "short"}, "at least 16"),
        ({"depth": 0}, "depth 0"),
        ({"chunk": 4097}, "multiple of 4096"),
        ({"timeout": -1}, "timeout -1"),
        ({"backend": "carrier pigeon"}, "one of tcp, nixl, mooncake"),
        ({"listen": "127.0.0.1"}, "host:port"),
        ({"listen": "unix:relative"}, "absolute path"),
        ({"listen": other.address}, "in use"),
        ({"host": ""}, "host ''"),
    ):
        with pytest.raises(errors.InvalidArgument, match=words):
            t.Node(**SETTINGS | settings)
    with t.Node(**SETTINGS | {"secret": SECRET + "?"}) as stranger:
        with pytest.raises(errors.PeerRefused, match="another secret: give both the same"):
            stranger.connect(other.address)
        assert stranger.stats()["peers"] == 0
    other.expose("still", 10, None, 1, False)
    path = f"unix:{tmp_path}/node"
    with t.Node(**SETTINGS | {"secret": None, "listen": path}) as served:
        assert (tmp_path / "node").stat().st_mode & 0o777 == 0o600
        served.expose("x", np.arange(10, dtype="uint8"))
        with t.Node(**SETTINGS | {"secret": None}) as node, node.connect(path) as peer:
            into = np.zeros(10, "uint8")
            peer.read("x", into).wait(20)
            assert into[9] == 9
    assert not (tmp_path / "node").exists()


def test_strangers_do_no_harm(other: Other, node: t.Node) -> None:
    """Strangers have another version, send noise or nothing, or no MAC made with the secret."""
    host, port = other.address.split(":")

    def say(*parts: bytes) -> bytes:
        with socket.create_connection((host, int(port)), 5) as stranger:
            for part in parts:
                stranger.sendall(part)
            stranger.settimeout(10)
            got = b""
            try:
                while part := stranger.recv(4096):
                    got += part
            except ConnectionResetError:
                pass
            return got

    def framed(text: bytes, mac: bytes = b"") -> bytes:
        return struct.pack(">I", len(text)) + mac + text

    hello = framed(json.dumps({"kind": "hello", "version": 1, "nonce": "0" * 64}).encode())
    assert say(b"GET / HTTP/1.1\r\n\r\n") == b""
    assert say(struct.pack(">I", 1 << 31)) == b""
    assert say(framed(b"[" * 4000)) == b""
    said = say(hello, framed(b'{"kind": "ask"}', bytes(32)))
    assert b'"hello"' in said and said.endswith(framed(REFUSAL, bytes(32)))  # and no MAC
    silent = socket.create_connection((host, int(port)), 5)
    join = {"kind": "join", "backend": BACKEND, "metadata": "AAAA", "chunk": 4096}
    assert b"nothing is" not in say(hello, framed(json.dumps(join).encode(), bytes(32)))
    other.expose("after strangers", 10, None, 1, False)
    with node.connect(other.address) as peer:
        assert peer.size("after strangers") == 10
    silent.close()


def test_another_version_is_refused(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    with t.Node(**SETTINGS) as node:
        monkeypatch.setattr(messages, "VERSION", 2)
        with pytest.raises(errors.PeerRefused, match="speaks version 1 .* this one 2"):
            node.connect(other.address)
        assert node.stats()["peers"] == 0


def test_connecting_again(other: Other, node: t.Node) -> None:
    """The engine forgets a peer, and learns to know it again."""
    other.expose("again", MIB, 2, 21, False)
    for _ in range(3):
        into = np.zeros(MIB, "uint8")
        with node.connect(other.address) as peer:
            peer.read("again", into).wait(60)
        assert (into == pattern(MIB, 21)).all()
        settled(node, peers=0)
        assert not node._carrier._peers


def test_another_engine_is_refused(node: t.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with t.Node(**SETTINGS, listen="127.0.0.1:0") as served:
        monkeypatch.setattr(served._carrier.backend, "name", "carrier pigeon", raising=False)
        with pytest.raises(errors.PeerRefused, match="choose one engine for both, such as Node"):
            node.connect(served.address or "")
    assert repr(served) == f"<Node {served.address}, over carrier pigeon, closed>"
    assert repr(node) == f"<Node not listening, over {BACKEND}, 0 peers>"


def test_a_missing_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glake.extras.present", lambda module: False)
    with t.Node() as node:  # a machine without RDMA needs no package
        assert "over tcp" in repr(node)
    monkeypatch.setattr("glake.transfer.nodes.settings.has_rdma", lambda: True)
    with pytest.raises(errors.PackageMissing, match=r'pip install "glake\[nodes\]"'):
        t.Node()
    with pytest.raises(errors.PackageMissing, match=r"needs nixl.*glake\[nodes\]"):
        t.Node(backend="nixl")
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(errors.PackageMissing, match=r"glake\[nodes-mooncake\]"):
        t.Node(backend=t.Mooncake())
    for make in (lambda: t.Nixl(""), lambda: t.Mooncake("smoke signals")):
        with pytest.raises(errors.InvalidArgument):
            make()


def test_a_forked_child_has_no_node(node: t.Node) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            node.stats()
        except errors.Forked:
            node.close()
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert node.stats()["buffer_bytes"] > 0


def test_a_killed_node_is_gone_though_its_child_lives(doomed: Other, node: t.Node) -> None:
    peer = node.connect(doomed.address)
    sleeps = "__import__('time').sleep(60) or __import__('os')._exit(0)"
    child = int(doomed.do(f"__import__('os').fork() or {sleeps}"))
    try:
        doomed.process.kill()
        doomed.process.wait()
        settled(node, peers=0)
        with pytest.raises(errors.PeerLost, match="ended the connection"):
            peer.size("anything")
        with pytest.raises(errors.PeerLost, match="nobody answers"):
            node.connect(doomed.address, timeout=0.3)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_node_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no thread left. Nothing of the node stays."""
    path = tmp_path / "node"
    made = []

    def submit(pool: ThreadPoolExecutor, *_: Any) -> None:
        made.append(pool)
        if len(made) == 2:
            raise RuntimeError("can't start new thread")

    t.Node(**SETTINGS).close()  # opens what stays
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(ThreadPoolExecutor, "submit", submit)
        with pytest.raises(errors.PeerFailed, match="does not start: can't start new thread"):
            t.Node(**SETTINGS, listen=f"unix:{path}")
    assert len(made) == 2 and not path.exists()
    if BACKEND == "tcp":  # the others keep descriptors of their own
        assert len(os.listdir("/proc/self/fd")) == before
    with t.Node(**SETTINGS, listen=f"unix:{path}"):
        pass


def test_what_a_dead_node_has_left(tmp_path: Path) -> None:
    path = tmp_path / "node"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with t.Node(**SETTINGS, listen=f"unix:{path}") as served:
        with pytest.raises(errors.InvalidArgument, match="in use"):
            t.Node(**SETTINGS, listen=f"unix:{path}")
        assert path.exists() and served.address == f"unix:{path}"


def test_a_path_that_another_node_has_taken(tmp_path: Path) -> None:
    """A node that ends leaves the other's socket alone."""
    path = tmp_path / "node"
    first = t.Node(**SETTINGS, listen=f"unix:{path}")
    path.unlink()
    with t.Node(**SETTINGS, listen=f"unix:{path}") as second:
        first.close()
        with t.Node(**SETTINGS) as node, node.connect(str(second.address)):
            pass
    assert not path.exists()


def test_strangers_do_not_hold_up_the_end() -> None:
    node = t.Node(**SETTINGS, listen="127.0.0.1:0")
    host, port = str(node.address).split(":")
    with socket.create_connection((host, int(port)), 5):
        time.sleep(0.2)
        began = time.monotonic()
        node.close()
        assert time.monotonic() - began < 5


def test_nobody_there(node: t.Node) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(errors.PeerLost, match="nobody answers"):
        node.connect(address, timeout=0.5)
    assert time.monotonic() - began < 5


def test_closing(other: Other) -> None:
    other.expose("to close", 32 * MIB, 1, 1, False)
    before = set(threading.enumerate())
    node = t.Node(**SETTINGS)
    going = node.connect(other.address).read("to close", np.zeros(32 * MIB, "uint8"))
    node.close()
    node.close()
    assert going.done()
    with pytest.raises(errors.PeerLost):
        going.wait()
    with pytest.raises(errors.TransferClosed):
        node.connect(other.address)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith(("glake-node", "glake-tcp"))}, left
    assert node.stats()["buffer_bytes"] == 0 and node.stats()["peers"] == 0


def test_statistics_of_the_process(node: t.Node) -> None:
    found = t.stats()["nodes"]
    assert found["buffer_bytes"] >= node.stats()["buffer_bytes"] > 0 and found["reads"] > 0
    read = {each.metric.name: dict(each.values) for each in Reading().read()}
    assert read["node_bytes"][("network_read",)] == found["network_read_bytes"] > 0
    assert read["node_transfers"] == {("read",): found["reads"], ("write",): found["writes"]}
    assert read["node_buffer_bytes"][()] == found["buffer_bytes"]
