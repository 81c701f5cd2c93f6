"""Ranks that see one GPU each, when the relay service that helps them stops.

The ranks mostly wait for the simulator's slow clock. So these tests are a file of their own, which
another worker runs beside those of test_relay_ranks.py.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks_running import PATIENCE, Rank, books_of, two_ranks

from glake.transfer.relay import directory, starting

pytestmark = pytest.mark.proof


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Rank]]:
    # On a clock that is 2000 times slower, delays of a busy machine are short.
    with two_ranks(tmp_path, getattr(request, "param", 2000)) as started:
        yield started


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
