"""The relay service as a process, spoken to by hand: strangers, races, and its end."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import glake
from glake.cli import main
from glake.errors import RelayRefused, RelayUnavailable
from glake.files import lock
from glake.transfer import topology
from glake.transfer.relay import directory, protocol, service, starting
from glake.transfer.relay.protocol import Demands, Grant, Hello, Refused

PATIENCE = 30  # seconds, on a busy machine
TOPOLOGY = topology.from_preset("dgx_a100")
LOAD = ((-1, -2, 0, 0, 1.0),)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> directory.Files:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = directory.Files(directory.private(), directory.key_of(TOPOLOGY))
    made.store(TOPOLOGY)
    return made


def start(files: directory.Files, idle: float = PATIENCE) -> subprocess.Popen[bytes]:
    return starting.spawn(files, TOPOLOGY, idle)


def until_serving(files: directory.Files) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError, RelayUnavailable):
            if starting.ask(files, "status") is not None:
                return
        assert time.monotonic() < end, files.log.read_text()
        time.sleep(0.02)


@pytest.fixture
def serving(files: directory.Files) -> Iterator[directory.Files]:
    process = start(files)
    until_serving(files)
    yield files
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


class Peer:
    """A client that a test plays by hand, without an engine."""

    def __init__(self, files: directory.Files, gpu: int = 0, **changes: Any) -> None:
        connection = starting.connect(files)
        assert connection is not None
        self.connection = connection
        connection.settimeout(PATIENCE)
        hello = {"version": protocol.VERSION, "pid": os.getpid(), "key": files.key}
        self.send(
            Hello(**{**hello, "gpus": (gpu,), "visible": 8, "seen": tuple(range(8)), **changes})
        )

    def send(self, message: protocol.Message) -> None:
        protocol.send(self.connection, message)

    def receive(self) -> Grant | Refused:
        head = starting._exactly(self.connection, protocol.HEAD_BYTES)
        size = protocol.length(head, protocol.MOST_ANSWER)
        answer: Grant | Refused = protocol.decode(
            starting._exactly(self.connection, size), (Grant, Refused)
        )
        return answer

    def granted(self, serial: int = 0) -> Grant:
        """The grant that answers these demands."""
        while True:
            answer = self.receive()
            assert isinstance(answer, Grant), answer
            if answer.serial == serial:
                return answer

    def refused(self) -> str:
        while True:
            answer = self.receive()
            if isinstance(answer, Refused):
                assert answer.lasting and self.connection.recv(1) == b""
                return answer.reason

    def close(self) -> None:
        self.connection.close()


def test_loans_go_and_come_back(serving: directory.Files) -> None:
    assert stat.S_IMODE(serving.socket.stat().st_mode) == 0o600
    first, second = Peer(serving, 0), Peer(serving, 1)
    first.granted()
    first.send(Demands(1, (0,), LOAD))
    second.send(Demands(1, (1,), ((-1, -2, 1, 0, 1.0),)))
    shared = first.granted(1)
    second.granted(1)
    assert len(shared.relays) == 4 and 0 not in shared.relays
    second.close()
    while sum(shared.limits) < len(shared.limits):
        shared = first.granted(1)  # until it has the other client's part too
    first.close()


def test_loans_of_a_killed_client_come_back_whatever_children_it_has(
    serving: directory.Files,
) -> None:
    """A child that C code forked, of which Python knows nothing, keeps the connection open."""
    hello = Hello(protocol.VERSION, 1, serving.key, (0,), 8, tuple(range(8)))
    program = Path(__file__).parent / "programs" / "relay_client_forks.py"
    command = [sys.executable, program, serving.socket, protocol.encode(hello).hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        child = int(client.stdout.readline())
        try:
            other = Peer(serving, 1)
            assert set(other.granted().limits) != {1.0}
            client.kill()
            while set(other.granted().limits) != {1.0}:
                pass  # until it has all
            os.kill(child, 0)  # it is there still
        finally:
            os.kill(child, signal.SIGKILL)
    other.close()


GARBAGE = {
    "no length": (b"\xff\xff\xff\xff", "bytes"),
    "no JSON": (struct.pack(">I", 3) + b"abc", "no JSON"),
    "demands first": (protocol.encode(Demands(1, (), ())), "before hello"),
    "an answer": (protocol.encode(Grant(1, (), ())), "kind"),
}


def test_strangers_hurt_nobody(serving: directory.Files) -> None:
    good = Peer(serving, 0)
    good.granted()
    for data, named in GARBAGE.values():
        wrong = Peer.__new__(Peer)
        connection = starting.connect(serving)
        assert connection is not None
        wrong.connection = connection
        connection.sendall(data)
        assert named in wrong.refused()
    for changes, named in (
        ({"key": "0" * 16}, "another topology"),
        ({"version": 0}, "version"),
        ({"gpus": (7,), "visible": 3, "seen": (0, 1)}, "cuda:7"),
        ({"seen": (0, 9)}, "cuda:9"),
        ({"visible": 16}, "16 GPUs"),
    ):
        assert named in Peer(serving, **changes).refused()
    late = Peer(serving, 1)
    late.send(Demands(1, (1,), ((-1, 5, 1, 0, 1.0),)))
    assert "socket 5" in late.refused()
    twice = Peer(serving, 1)
    twice.send(Hello(protocol.VERSION, 1, serving.key, (), 8, (0, 1)))
    assert "after hello" in twice.refused()
    half = starting.connect(serving)
    assert half is not None
    half.sendall(b"\0\0")
    half.close()
    good.send(Demands(1, (0,), LOAD))
    assert set(good.granted(1).limits) == {1.0}  # alone again
    good.close()


def test_a_client_that_does_not_read_delays_nobody(serving: directory.Files) -> None:
    deaf, good = Peer(serving, 1), Peer(serving, 0)
    deaf.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for serial in range(1, 300):
        gpu = serial % 2
        good.send(Demands(serial, (0,), ((-1, gpu, 0, 0, 1.0),)))
        deaf.send(Demands(serial, (1,), ((-1, 1 - gpu, 1, 0, 1.0),)))
    assert good.granted(299)
    deaf.granted(299)  # it then finds the newest grant
    for peer in (deaf, good):
        peer.close()


def test_starters_at_once_leave_one(files: directory.Files) -> None:
    several = [start(files) for _ in range(3)]
    until_serving(files)
    end = time.monotonic() + PATIENCE
    while sum(each.poll() is None for each in several) > 1:
        assert time.monotonic() < end
        time.sleep(0.02)
    answer = starting.ask(files, "stop")
    assert answer is not None
    left = [each for each in several if each.pid == answer.books["pid"]]
    assert len(left) == 1 and [each.wait(PATIENCE) for each in several] == [0, 0, 0]
    assert not files.socket.exists()


def test_clients_at_once_start_one(files: directory.Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one client starts the service, the others wait for it, but not for ever."""
    spawned, spawn = [], starting.spawn

    def counting(*arguments: Any) -> subprocess.Popen[bytes]:
        spawned.append(spawn(*arguments))
        return spawned[-1]

    monkeypatch.setattr(starting, "spawn", counting)
    another = lock(files.starting)
    assert another is not None
    process = spawn(files, TOPOLOGY, PATIENCE)
    for _ in range(2):
        connection = starting.reach(files, TOPOLOGY, PATIENCE, threading.Event())
        assert connection is not None and not spawned
        connection.close()
    starting.ask(files, "stop")
    assert process.wait(PATIENCE) == 0
    monkeypatch.setattr(starting, "PATIENCE", 0.1)
    connection = starting.reach(files, TOPOLOGY, PATIENCE, threading.Event())
    assert connection is not None and len(spawned) == 1
    connection.close()
    starting.ask(files, "stop")
    assert spawned[0].wait(PATIENCE) == 0
    os.close(another)
    stopped = threading.Event()
    stopped.set()
    assert starting.reach(files, TOPOLOGY, 0.05, stopped) is None


def test_stale_socket_and_idle_end(files: directory.Files) -> None:
    """The socket that a killed service left is replaced. A service without clients ends."""
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(files.socket))
    stale.close()
    assert starting.connect(files) is None
    stopped = threading.Event()
    connection = starting.reach(files, TOPOLOGY, 0.4, stopped)
    assert connection is not None
    peer = Peer(files)
    connection.close()
    peer.granted()
    time.sleep(0.8)  # longer than it waits without clients; it has one
    answer = starting.ask(files, "status")
    assert answer is not None and len(answer.books["clients"]) == 1
    peer.close()
    end = time.monotonic() + PATIENCE
    while files.socket.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert starting.connect(files) is None


def test_a_service_that_nobody_finds_ends(
    files: directory.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients and new ones then meet in another service. Few are started meanwhile."""
    lost = start(files)
    until_serving(files)
    peer = Peer(files)
    peer.granted()
    files.socket.unlink()
    spawned, spawn = [], starting.spawn

    def counting(*arguments: Any) -> subprocess.Popen[bytes]:
        spawned.append(spawn(*arguments))
        return spawned[-1]

    monkeypatch.setattr(starting, "spawn", counting)
    os.kill(lost.pid, signal.SIGSTOP)  # for as long as a start takes, it holds the lock
    os.waitid(os.P_PID, lost.pid, os.WSTOPPED)
    threading.Timer(3, os.kill, (lost.pid, signal.SIGCONT)).start()
    connection = starting.reach(files, TOPOLOGY, PATIENCE, threading.Event())
    assert connection is not None and len(spawned) < 10
    answer = peer.receive()
    assert isinstance(answer, Refused) and not answer.lasting  # the client connects again
    assert lost.wait(PATIENCE) == 0
    assert "removed its socket" in files.log.read_text()
    connection.close()
    assert starting.ask(files, "stop") is not None
    assert spawned[-1].wait(PATIENCE) == 0


@pytest.mark.parametrize("gone", ["folder", "lock"])
def test_a_service_leaves_its_successor_alone(files: directory.Files, gone: str) -> None:
    """Without its folder or lock file, a service cannot keep another from taking its place."""
    first = start(files)
    until_serving(files)
    os.kill(first.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, first.pid, os.WSTOPPED)
    if gone == "folder":
        shutil.rmtree(files.where)
        directory.private(files.where)
    else:
        files.lock.unlink()
        files.socket.unlink()
    second = start(files)
    until_serving(files)
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(PATIENCE) == 0  # it sees that its socket is gone
    answer = starting.ask(files, "stop")
    assert answer is not None and answer.books["pid"] == second.pid
    assert second.wait(PATIENCE) == 0 and not files.socket.exists()


def test_a_service_that_cannot_start(
    files: directory.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory.Files, "store", lambda self, _: self.topology.write_text("{}"))
    with pytest.raises(RelayUnavailable, match=r"ended at once with 2: see .*\.log"):
        starting.reach(files, TOPOLOGY, 1, threading.Event())
    assert "describes no topology" in files.log.read_text()


def test_other_users_are_refused(files: directory.Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service refuses them, and so does a client. The test replaces the peer that the kernel
    names."""
    listening = service._listening(files)
    listening.listen()

    async def meet() -> bytes:
        served = service.Service(TOPOLOGY, files, 4, None)
        running = asyncio.create_task(served.run(listening))
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_unix_connection(str(files.socket))
        answer = await reader.read()
        writer.close()
        served._over.set()
        await running
        return answer

    monkeypatch.setattr(directory, "peer", lambda _: (77, os.geteuid() + 1))
    answer = protocol.decode(asyncio.run(meet())[protocol.HEAD_BYTES :], (Refused,))
    assert answer.lasting and "process 77" in answer.reason
    listening = service._listening(files)
    listening.listen()
    with listening, pytest.raises(RelayRefused, match="process 77"):
        starting.connect(files)


def test_clients_that_come_at_once_are_no_more_than_there_may_be(
    files: directory.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients that see one GPU come while the service opens the others. It takes two."""
    monkeypatch.setattr(service, "MOST_CLIENTS", 2)
    opening, ending = threading.Event(), threading.Event()
    core = SimpleNamespace(
        relay_open=lambda *_: opening.wait(PATIENCE),
        relay_wait=lambda: ending.wait(PATIENCE),
        relay_close=ending.set,
    )
    monkeypatch.setattr(service, "_C", core)
    hello = Hello(protocol.VERSION, os.getpid(), files.key, (0,), 8, (0,))
    listening = service._listening(files)
    listening.listen()

    async def meet() -> list[Any]:
        served = service.Service(TOPOLOGY, files, None, None)
        running = asyncio.create_task(served.run(listening))
        both = [await asyncio.open_unix_connection(str(files.socket)) for _ in range(3)]
        for _, writer in both:
            writer.write(protocol.encode(hello))
        while served._door is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # all three wait for it
        opening.set()
        answers = []
        for reader, writer in both:
            size = protocol.length(await reader.readexactly(4), protocol.MOST_ANSWER)
            answers.append(protocol.decode(await reader.readexactly(size), (Grant, Refused)))
            writer.close()
        served._over.set()
        await running
        return answers

    answers = asyncio.run(meet())
    assert sorted(type(each).__name__ for each in answers) == ["Grant", "Grant", "Refused"]


@pytest.mark.parametrize("late", range(12))
def test_a_client_that_comes_at_the_end_does_not_hold_it_up(
    files: directory.Files, late: int
) -> None:
    """Its hello arrives so many turns of the loop before the service is ended."""
    hello = Hello(protocol.VERSION, os.getpid(), files.key, (0,), 8, tuple(range(8)))
    listening = service._listening(files)
    listening.listen()

    async def meet() -> Any:
        served = service.Service(TOPOLOGY, files, None, None)
        running = asyncio.create_task(served.run(listening))
        reader, writer = await asyncio.open_unix_connection(str(files.socket))
        while not served._tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        writer.write(protocol.encode(hello))
        for _ in range(late):
            await asyncio.sleep(0)
        served._over.set()
        done, _ = await asyncio.wait([running], timeout=5)
        writer.close()
        await running
        return done

    assert asyncio.run(meet())


def test_a_service_that_hangs_is_told_from_none(
    files: directory.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "SEND_SECONDS", 0.2)
    listening = service._listening(files)
    listening.listen()
    says = f"process {os.getpid()}), and does not answer within 0.2 s"
    with listening:
        for asked in (["--status"], ["--stop"], ["--status", "--json"]):
            done = CliRunner().invoke(main, ["relayd", *asked])
            assert done.exit_code == 1 and says in done.stderr and str(files.socket) in done.stderr
            assert "no relay service" not in done.stdout
        books = json.loads(done.stdout)
        assert books["services"] == [] and says in books["failed"][0]
    files.socket.unlink()
    assert CliRunner().invoke(main, ["relayd", "--status"]).exit_code == 0


def test_a_service_that_is_gone_ends_no_process(files: directory.Files) -> None:
    """SIGPIPE ends the process there, as in programs that set it back or that embed Python."""
    program = Path(__file__).parent / "programs" / "gone_service.py"
    command = [sys.executable, str(program), str(files.where), files.key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    told = "ask: BrokenPipeError\ndemands: BrokenPipeError\n"
    assert (done.returncode, done.stdout) == (0, told), done.stderr


def test_command(serving: directory.Files) -> None:
    peer = Peer(serving, 3)
    peer.send(Demands(1, (3,), ((-1, -2, 3, 0, 1.0), (3, 0, 5, 0, 1.0))))
    peer.granted(1)
    shown = CliRunner().invoke(main, ["relayd", "--status"])
    assert shown.exit_code == 0
    for text in ("dgx_a100", str(os.getpid()), "cpu>cuda:3", "cuda:3>cuda:5"):
        assert text in shown.output
    books = json.loads(CliRunner().invoke(main, ["relayd", "--status", "--json"]).output)
    (one,) = books["services"]
    assert one["key"] == serving.key and one["clients"][0]["gpus"] == [3]
    links = [f"{edge.source}>{edge.target}" for edge in TOPOLOGY.platform.edges]
    # Only limits of links are shown, and not the planner's limit of copies within a GPU.
    assert [name for name, _ in one["limits"]][: len(links)] == links
    assert len(one["limits"]) == len(one["clients"][0]["parts"])
    assert not any(f"g{gpu}>g{gpu}" in str(books) + shown.output for gpu in range(8))
    other = CliRunner().invoke(main, ["relayd", "--status", "--preset", "dgx1v"])
    assert other.output == "no relay service is running\n"
    again = CliRunner().invoke(main, ["relayd", "--preset", "dgx_a100"])
    assert again.exit_code == 2 and "runs already" in again.output
    peer.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--status", "--stop"], "one of them"),
        (["--json"], "--status"),
        (["--status", "--idle", "1"], "--idle"),
        (["--preset", "nowhere"], "nowhere"),
        (["--preset", "dgx1v", "--file", "x"], "one of them"),
        (["--name", "x"], "--file"),
        (["--idle", "-1"], "--idle"),
    ],
)
def test_wrong_use(files: directory.Files, arguments: list[str], named: str) -> None:
    done = CliRunner().invoke(main, ["relayd", *arguments])
    assert done.exit_code == 2 and named in done.output and "Traceback" not in done.output


def test_by_hand(files: directory.Files) -> None:
    """The service runs in the foreground until it is interrupted."""
    root = str(Path(glake.__file__).resolve().parents[1])
    command = [sys.executable, "-m", "glake", "relayd", "--preset", "dgx_a100"]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.PIPE, text=True
    ) as process:
        until_serving(files)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and errors.count("\n") == 1 and str(files.log) in errors


def test_by_hand_until_idle(files: directory.Files) -> None:
    """A service that has never had a client is idle too."""
    done = subprocess.run(
        [sys.executable, "-m", "glake", "relayd", "--preset", "dgx_a100", "--idle", "0.2"],
        env={**os.environ, "PYTHONPATH": str(Path(glake.__file__).resolve().parents[1])},
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and not files.socket.exists()
