"""An engine uses the GPUs and parts of links that it is lent, and reports its copies."""

import itertools
import os
import select

import numpy as np
import pytest
from memory import MIB, Device, numbers

from glake import _C, errors
from glake import transfer as t

SIZE = 32 * MIB
GRAPH = _C.CapacityGraph(t.default_engine().topology.text(), t.default_engine().topology.name)
NAMES, COUNT = GRAPH.edges(), len(GRAPH.limits())


@pytest.fixture(autouse=True)
def all_again() -> object:
    """Every test starts with all GPUs and all of every link."""
    t.default_engine()
    _C.transfer_lend(0xFFFF, [])
    return


def relays_of(gpu: int) -> set[str]:
    """The relays that a copy to a GPU went over. The copy must arrive whole."""
    data, block = t.pinned((SIZE,), "uint8"), Device((SIZE,), gpu=gpu)
    data[:] = numbers(SIZE)
    result = t.copy(block, data).result()
    assert (block.get() == data).all()
    return {name for path in result.paths for name in path["path"].split(">")[1:-1]}


def parts(**given: float) -> list[float]:
    """The whole of every limit, except for the named edges: u0_g0 is u0>g0."""
    named = {name.replace("_", ">"): part for name, part in given.items()}
    return [named.get(NAMES[i], 1.0) if i < len(NAMES) else 1.0 for i in range(COUNT)]


def test_only_lent_gpus_relay() -> None:
    assert len(relays_of(0)) > 1
    _C.transfer_lend(0, [])
    assert relays_of(0) <= {"cuda:0"} and t.stats()["relays"] == [0]
    _C.transfer_lend(1 << 4, [])
    assert relays_of(0) == {"cuda:4"} and t.stats()["relays"] == [0, 4]


def test_gpus_of_own_copies_relay_too() -> None:
    _C.transfer_lend(0, [])
    assert relays_of(6) <= {"cuda:0", "cuda:4"}
    assert 6 in t.stats()["relays"] and 6 in _C.transfer_demands()["gpus"]
    assert "cuda:6" in relays_of(0)


def test_parts_of_links() -> None:
    def planned() -> float:
        return float(_C.transfer_explain(0, -1, 0, SIZE)["rate"])

    _C.transfer_lend(0, parts())
    full = planned()
    _C.transfer_lend(0, [0.5] * COUNT)
    assert planned() == pytest.approx(full / 2) and t.stats()["lent"] is True
    _C.transfer_lend(0xFFFF, parts(s0_u0=0.0))
    plan = _C.transfer_explain(0, -1, 0, SIZE)
    assert all(path["path"] != "cpu:0>cuda:0" for path in plan["paths"])
    assert any("lent to other processes" in refused["reason"] for refused in plan["refusals"])
    assert relays_of(0) >= {"cuda:2"} or relays_of(0) >= {"cuda:3"}
    _C.transfer_lend(0xFFFF, [])
    assert t.stats()["lent"] is False


@pytest.mark.parametrize("factors", [[1.0], [1.5] * COUNT, [-1.0] * COUNT, [float("nan")] * COUNT])
def test_wrong_parts(factors: list[float]) -> None:
    before = t.stats()["relays"]
    with pytest.raises(errors.InvalidArgument, match="parts"):
        _C.transfer_lend(0, factors)
    assert t.stats()["relays"] == before


def readable(descriptor: int) -> bool:
    ready = bool(select.select([descriptor], [], [], 0)[0])
    if ready:
        os.read(descriptor, 8)
    return ready


def test_demands() -> None:
    event = _C.transfer_demands_event()
    assert _C.transfer_demands_event() == event
    readable(event)
    data, block = t.pinned((2 * SIZE,), "uint8"), Device((2 * SIZE,), gpu=3)
    handle = t.copy(block, data)
    seen = _C.transfer_demands()["demands"]
    if handle.progress()[0] < 2 * SIZE:
        assert seen == [[-1, 0, 3, 0]]
    assert readable(event)
    handle.wait()
    assert _C.transfer_demands()["demands"] == []
    readable(event)
    t.copy(Device((64,), gpu=3), np.zeros(64, np.uint8)).wait()  # a plain copy demands nothing
    assert not readable(event)


def test_loans_that_change_under_a_copy() -> None:
    """Each byte lands, whatever GPUs are taken away and given back meanwhile."""
    block = Device((2 * SIZE,), gpu=1)
    for round in range(3):
        data = numbers(2 * SIZE, round)
        handle = t.copy(block, data)
        for bits in itertools.islice(itertools.cycle((0, 1 << 2, 0x3C, 1 << 6)), 200):
            if handle.done():
                break
            _C.transfer_lend(bits, parts(s0_u0=0.25, s1_u2=0.5) if bits else [])
        handle.wait()
        assert (block.get() == data).all()


@pytest.mark.parametrize("error", [errors.InvalidDevice("other GPUs"), OSError("no descriptor")])
def test_an_engine_that_could_not_begin_is_not_open(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    t.default_engine().close()
    monkeypatch.setattr("glake.transfer.relay.client.RelayClient", refuse)
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            t.Engine("dgx_a100", relays="lent")
    monkeypatch.undo()
    with t.Engine("dgx_a100", relays="own") as engine:
        assert engine.is_open and relays_of(5) == set()


def test_modes() -> None:
    t.default_engine().close()
    with pytest.raises(errors.InvalidArgument, match="all, lent, own"):
        t.Engine("dgx_a100", relays="some")
    with t.Engine("dgx_a100", relays="own") as engine:
        assert relays_of(5) == set()
        assert engine.stats()["lending"] == {"mode": "own"}
        assert engine.stats()["relays"] == [5]
    with t.Engine("dgx_a100") as engine:
        assert engine.relays == "all" and len(relays_of(5)) > 1
