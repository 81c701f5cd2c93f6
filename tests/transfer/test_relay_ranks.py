"""Ranks that see one GPU each load over the others, with the relay service's help."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glake.transfer.relay import directory, starting

pytestmark = pytest.mark.proof
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 240  # seconds, on a busy machine


class Rank:
    """A process of rank_worker.py that sees one GPU."""

    def __init__(self, runtime: Path, machine: str, gpu: int, pace: int) -> None:
        self.gpu, self.errors = gpu, runtime / f"errors-{gpu}"
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        more = {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": str(runtime),
            "GLAKE_DRIVER": "sim:dgx1v",
            "GLAKE_SIM_MEMORY": "128MiB",
            "GLAKE_SIM_MACHINE": machine,
            "GLAKE_SIM_PACE": str(pace),
            "GLAKE_SIM_VISIBLE_DEVICES": "1",
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "LOCAL_RANK": str(gpu),
            "LOCAL_WORLD_SIZE": "2",
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "rank_worker.py")],
                env={**clean, **more},
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

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits for the first state for which `holds` is true."""
        end = time.monotonic() + PATIENCE
        while not holds(state := self.ask("state")):
            assert time.monotonic() < end, (state, self.errors.read_text())
        return state


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Rank]]:
    machine = f"ranks-{uuid.uuid4().hex[:12]}"
    # On a clock that is 2000 times slower, delays of a busy machine are short.
    pace = getattr(request, "param", 2000)
    started = [Rank(tmp_path, machine, gpu, pace) for gpu in (2, 5)]
    yield started
    for rank in started:
        rank.process.kill()
        rank.process.wait()
        for stream in (rank.process.stdin, rank.process.stdout):
            if stream is not None:
                stream.close()
    for socket in tmp_path.glob("glake-relay/*.sock"):
        books = starting.ask(directory.Files(socket.parent, socket.stem), "status")
        if books is not None:
            os.kill(books.books["pid"], signal.SIGTERM)


def books_of(runtime: Path) -> dict[str, Any]:
    (socket,) = runtime.glob("glake-relay/*.sock")
    found = starting.ask(directory.Files(socket.parent, socket.stem), "status")
    assert found is not None
    return found.books


def test_two_load_over_gpus_they_do_not_see_and_one_is_killed(
    ranks: list[Rank], tmp_path: Path
) -> None:
    """Every byte is right in all kinds of host memory. The other goes on, and has all links."""
    first, second = ranks
    for rank in ranks:
        state = rank.until(lambda state: state["relayed"] > 5)
        assert len(state["hidden"]) == 7, state  # in its own numbering, from 1
        assert state["hidden"] == list(range(1, 8)) and state["not_reached"] == {}
        assert state["relays"] == list(range(8))
    books = books_of(tmp_path)
    assert sorted(client["gpus"] for client in books["clients"]) == [[2], [5]]
    second.tell("die")
    assert second.process.wait(PATIENCE) == -signal.SIGKILL
    end = time.monotonic() + PATIENCE
    while len(books_of(tmp_path)["clients"]) > 1:
        assert time.monotonic() < end
        time.sleep(0.01)
    before = first.ask("state")
    after = first.until(lambda state: state["relayed"] > before["relayed"] + 5)
    assert after["service"] == "lent"
    assert first.ask("end")["wrong"] == 0
    assert first.process.wait(PATIENCE) == 0
    assert first.errors.read_text() == ""
    while books_of(tmp_path)["clients"]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_service_is_killed_under_them(ranks: list[Rank], tmp_path: Path) -> None:
    """Copies under way end well by other paths, and another service serves from then on."""
    for rank in ranks:
        rank.until(lambda state: state["relayed"] > 5)
    killed = books_of(tmp_path)["pid"]
    os.kill(killed, signal.SIGKILL)
    after = [rank.ask("state") for rank in ranks]
    for rank, before in zip(ranks, after, strict=True):
        state = rank.until(lambda state, old=before["relayed"]: state["relayed"] > old + 5)
        assert state["service"] == "lent" and state["hidden"] == list(range(1, 8)), state
        assert rank.ask("end")["wrong"] == 0
        assert rank.process.wait(PATIENCE) == 0
    assert books_of(tmp_path)["pid"] != killed


def test_statistics_of_ranks_without_a_service(ranks: list[Rank], tmp_path: Path) -> None:
    """After a stop, no GPU but the rank's own relays, and the statistics say so."""
    for rank in ranks:
        rank.until(lambda state: state["relayed"] > 1)
    (socket,) = tmp_path.glob("glake-relay/*.sock")
    assert starting.ask(directory.Files(socket.parent, socket.stem), "stop") is not None
    for rank in ranks:
        state = rank.until(lambda state: "stopped" in state["service"])
        assert state["relays"] == [0] and state["hidden"] == [] and state["not_reached"] == {}
        assert rank.ask("end")["wrong"] == 0


# On this clock a copy that stands still is given up within seconds.
@pytest.mark.parametrize("ranks", [10], indirect=True)
def test_the_service_stops_for_a_while(ranks: list[Rank], tmp_path: Path) -> None:
    """Nobody sees what it writes late. A copy may fail meanwhile and say so, but none is wrong."""
    for rank in ranks:
        rank.until(lambda state: state["relayed"] > 5)
    stopped = books_of(tmp_path)["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        for rank in ranks:
            copies = rank.ask("state")["copies"]
            rank.until(lambda state, old=copies: state["copies"] > old + 6)
    finally:
        os.kill(stopped, signal.SIGCONT)
    for rank in ranks:
        copies = rank.ask("state")["copies"]
        rank.until(lambda state, old=copies: state["copies"] > old + 6)
        assert rank.ask("end")["wrong"] == 0
        assert rank.process.wait(PATIENCE) == 0
