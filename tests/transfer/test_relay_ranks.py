"""Ranks that see one GPU each load over the others, with the relay service's help."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks_running import PATIENCE, Rank, books_of, two_ranks

pytestmark = pytest.mark.proof


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    # On a clock that is 2000 times slower, delays of a busy machine are short.
    with two_ranks(tmp_path, 2000) as started:
        yield started


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
