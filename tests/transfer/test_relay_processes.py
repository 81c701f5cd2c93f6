"""Real processes that share a node through the relay service, which they start themselves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glake.transfer.relay import directory, starting

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 120  # seconds, on a busy machine

Books = dict[str, Any]


def environment(runtime: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    return {
        **clean,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "XDG_RUNTIME_DIR": str(runtime),
        "GLAKE_DRIVER": "sim:dgx_a100",
        "GLAKE_SIM_MEMORY": "128MiB",
        **more,
    }


class Worker:
    """A process of relay_worker.py."""

    def __init__(self, runtime: Path, rank: int) -> None:
        self.rank = rank
        self.errors = runtime / f"errors-{rank}"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "relay_worker.py")],
                env=environment(runtime, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, what: str) -> dict[str, Any]:
        self.tell(what)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        answer: dict[str, Any] = json.loads(line)
        assert answer["wrong"] == 0
        return answer

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        answer = self.ask("end")
        assert self.process.wait(PATIENCE) == 0
        return answer


class Node:
    """The workers of one test, and the books of the service they share."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self.workers: list[Worker] = []
        self.most = 0.0  # the largest part of a limit ever granted

    def start(self, count: int) -> list[Worker]:
        self.workers = [Worker(self.runtime, rank) for rank in range(count)]
        return self.workers

    def books(self) -> Books | None:
        """The books of the one service. Checks that no limit is granted more than once."""
        where = self.runtime / "glake-relay"
        sockets = list(where.glob("*.sock")) if where.exists() else []
        assert len(sockets) <= 1
        try:
            found = starting.ask(directory.Files(where, sockets[0].stem), "status")
        except (IndexError, OSError):
            return None
        if found is None:
            return None
        for i, (name, _) in enumerate(found.books["limits"]):
            granted = sum(each["parts"][i] for each in found.books["clients"] if each["parts"])
            assert granted <= 1 + 1e-9, (name, granted)
            self.most = max(self.most, granted)
        return found.books

    def until(self, holds: Callable[[Books], bool]) -> Books:
        """Waits for the first books for which `holds` is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            books = self.books()
            if books is not None and holds(books):
                return books
            time.sleep(0.01)
        logs = [log.read_text() for log in self.runtime.glob("glake-relay/*.log")]
        raise AssertionError([*logs, *(worker.errors.read_text() for worker in self.workers)])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for worker in node.workers:
        worker.process.kill()
        worker.process.wait()
        for stream in (worker.process.stdin, worker.process.stdout):
            if stream is not None:
                stream.close()
    books = node.books()
    if books is not None:
        os.kill(books["pid"], signal.SIGTERM)


def busy(count: int) -> Callable[[Books], bool]:
    def holds(books: Books) -> bool:
        clients = books["clients"]
        # A demand is in the books before it is in the shares. Until then its rate is 0.
        return len(clients) == count and all(each["demands"] and each["rate"] for each in clients)

    return holds


def of(books: Books, worker: Worker) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in books["clients"] if each["pid"] == worker.process.pid
    )
    return found


def total(books: Books, worker: Worker) -> float:
    return sum(of(books, worker)["parts"])


def grown(books: Books, before: Books, workers: list[Worker]) -> bool:
    return all(
        total(books, worker) > 1.2 * total(before, worker)
        and of(books, worker)["rate"] > 1.2 * of(before, worker)["rate"]
        for worker in workers
    )


def test_three_share_and_one_is_killed(node: Node) -> None:
    """The killed one's loans come back at once. The others finish, and their bytes are right."""
    first, second, third = node.start(3)
    before = node.until(busy(3))
    for worker in node.workers:
        assert worker.rank in of(before, worker)["gpus"]
    end = time.monotonic() + PATIENCE
    while not all(worker.ask("state")["relayed"] > 2 for worker in node.workers):
        assert time.monotonic() < end
        node.books()
    before = node.until(busy(3))
    child = third.ask("fork")["child"]  # must hold none of its parent's loans
    third.tell("die")
    try:
        assert third.process.wait(PATIENCE) == -signal.SIGKILL
        node.until(lambda books: busy(2)(books) and grown(books, before, [first, second]))
    finally:
        os.kill(child, signal.SIGKILL)
    for worker in (first, second):
        copies, client = worker.ask("state")["copies"], of(before, worker)
        answer = worker.end()
        over = {name for path in answer["over"] for name in path.split(">")[1:-1]}
        assert over <= {f"cuda:{gpu}" for gpu in [*client["gpus"], *client["relays"]]}
        assert answer["copies"] > copies and answer["service"] == "lent"
        # It copied over GPUs that are not its own.
        assert set(answer["relays"]) - {worker.rank} and answer["relayed"] > 2
        assert worker.errors.read_text() == ""
    node.until(lambda books: not books["clients"])
    assert node.most > 0.9


def test_no_service_to_be_had(node: Node) -> None:
    """The directory is not private. Copies go over the process's own GPU, which is said once."""
    (node.runtime / "glake-relay").mkdir()
    (node.runtime / "glake-relay").chmod(0o755)
    (worker,) = node.start(1)
    end = time.monotonic() + PATIENCE
    while "755" not in worker.ask("state")["service"]:
        assert time.monotonic() < end
    answer = worker.end()
    assert answer["relays"] == [0] and answer["relayed"] == 0 and answer["copies"] > 1
    assert worker.errors.read_text().count("no relay service") == 1
    assert list((node.runtime / "glake-relay").iterdir()) == []


def test_service_killed_under_its_clients(node: Node) -> None:
    """The clients go on over their own GPUs and say so once. One of them starts another service."""
    workers = node.start(2)
    books = node.until(busy(2))
    copies = [worker.ask("state")["copies"] for worker in workers]
    os.kill(books["pid"], signal.SIGKILL)
    for worker, before in zip(workers, copies, strict=True):
        assert worker.ask("state")["copies"] > before
    again = node.until(lambda now: now["pid"] != books["pid"] and busy(2)(now))
    for worker in workers:
        end = time.monotonic() + PATIENCE
        while worker.ask("state")["service"] != "lent":
            assert time.monotonic() < end
    # A service that is stopped on purpose is not started again.
    stop = [sys.executable, "-m", "glake", "relayd", "--stop"]
    stopped = subprocess.run(
        stop, env=environment(node.runtime), capture_output=True, text=True, timeout=PATIENCE
    )
    assert stopped.stdout == f"stopped: dgx_a100, process {again['pid']}\n", stopped.stderr
    for worker in workers:
        end = time.monotonic() + PATIENCE
        while "stopped" not in worker.ask("state")["service"]:
            assert time.monotonic() < end
        answer = worker.end()
        assert answer["relays"] == [worker.rank]
        assert worker.errors.read_text().count("no relay service") == 1
    assert node.books() is None
