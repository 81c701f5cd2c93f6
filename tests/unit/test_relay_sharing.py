"""The relay service's books: the parts of a link never exceed the link, and are given back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glake._C import TransferPlanner
from glake.errors import BadMessage, InvalidArgument
from glake.transfer.place import graph_of
from glake.transfer.relay.link_shares import Ledger

HOST = (-1, -2)
EVEN = 1e-4  # a part so near an even share counts as one


def ledger(platform: str, gpus: list[int], most: int = 4) -> Ledger:
    books = Ledger(graph_of(platform), most)
    count = graph_of(platform).gpus
    for number, gpu in enumerate(gpus):
        books.join(number, [gpu], count)
    books.share()
    return books


def check(books: Ledger) -> None:
    """No limit is given away more than once, and every client has a part."""
    for i, (name, _) in enumerate(books.limits):
        parts = [client.parts[i] for client in books.clients.values()]
        assert sum(parts) <= 1 + 1e-9, (name, parts)
        assert all(part > 0 for part in parts), name


def load(gpu: int) -> tuple[int, int, int, int, float]:
    return (*HOST, gpu, 0, 1.0)


PLATFORMS = ["dgx_a100", "dgx1v", "hgx_h100_h200", "gb200_tray"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_idle_clients_share_evenly(platform: str) -> None:
    books = ledger(platform, [0, 1, 2])
    check(books)
    for client in books.clients.values():
        assert all(abs(part - 1 / 3) < EVEN for part in client.parts)


def test_a_client_alone_has_all() -> None:
    books = ledger("dgx_a100", [3])
    assert set(books.clients[0].parts) == {1.0}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_equal_demands_get_equal_rates_and_a_death_gives_back(platform: str) -> None:
    books = ledger(platform, [0, 1, 2])
    for number in range(3):
        books.want(number, [number], [load(number)])
    books.share()
    check(books)
    before = [client.rate for client in books.clients.values()]
    # A client that would gain too little from relays gets none, so the others get more.
    assert max(before) < (1.25 if platform == "gb200_tray" else 1.02) * min(before)
    shares = sum(books.clients[0].parts)
    books.leave(2)
    books.share()
    check(books)
    assert sum(books.clients[0].parts) > shares
    for number in range(2):
        assert books.clients[number].rate >= 0.999 * before[number]
    books.leave(1)
    books.share()
    assert books.clients[0].rate > 1.3 * before[0]
    assert set(books.clients[0].parts) == {1.0}


def test_one_copy_among_idle_clients_gets_nearly_all() -> None:
    alone = ledger("dgx_a100", [0])
    alone.want(0, [0], [load(0)])
    alone.share()
    books = ledger("dgx_a100", list(range(8)))
    books.want(0, [0], [load(0)])
    books.share()
    check(books)
    assert books.clients[0].rate > 0.95 * alone.clients[0].rate


def test_an_owner_keeps_what_a_plain_copy_would_give_it() -> None:
    """GPUs with slow links want a part of GPU 0's fast link, which GPU 0 wants whole."""
    platform = {
        "gpus": 3,
        "sockets": [[0, 1, 2]],
        "edges": [
            *[["m0", "s0", 200], ["s0", "m0", 200]],
            *[["s0", "g0", 40], ["g0", "s0", 40]],
            *[["s0", "g1", 4], ["g1", "s0", 4], ["s0", "g2", 4], ["g2", "s0", 4]],
            *[[f"g{a}", f"g{b}", 100] for a in range(3) for b in range(3) if a != b],
        ],
    }
    from glake.platform_file import parse

    books = Ledger(graph_of(parse(platform, "made up")))
    for number in range(3):
        books.join(number, [number], 3)
        books.want(number, [number], [load(number)])
    books.share()
    check(books)
    assert books.clients[0].rate > 0.9 * 40
    books.want(0, [0], [])
    books.share()
    check(books)
    assert books.clients[1].rate > 15  # over the owner's link, which it does not use now


def test_lent_gpus() -> None:
    books = ledger("dgx_a100", list(range(8)))
    for client in books.clients.values():
        assert len(client.relays) == 4 and not set(client.relays) & set(client.gpus)
        # Two GPUs share an uplink. One GPU of each other uplink comes before a second of any.
        assert {gpu // 2 for gpu in client.relays[:3]} == {0, 1, 2, 3} - {client.gpus[0] // 2}
    assert len({client.relays for client in books.clients.values()}) > 2
    assert ledger("dgx_a100", [0], most=1).clients[0].relays == books.clients[0].relays[:1]


def chain(last: str) -> Ledger:
    """A machine whose GPUs 0 and 1 share a narrow uplink. More bytes reach GPU 0 only over two GPUs
    in a row: GPU 4, and then GPU 1, which reaches GPU 0 over `last`."""
    from glake.platform_file import parse

    pairs = [("m0", "s0", 200), ("s0", "u0", 10), ("u0", "g0", 40), ("u0", "g1", 40)]
    pairs += [("s0", "g2", 5), ("s0", "g3", 5), ("s0", "g4", 30), ("g4", "g1", 100)]
    pairs += [("g0", "g1", 100)] if last == "NVLink" else []
    edges = [edge for a, b, rate in pairs for edge in ([a, b, rate], [b, a, rate])]
    platform = {"gpus": 5, "sockets": [[0, 1, 2, 3, 4]], "edges": edges}
    return Ledger(graph_of(parse(platform, "made up")))


@pytest.mark.parametrize("last", ["NVLink", "one PCIe switch"])
def test_two_in_a_row_are_lent_together(last: str) -> None:
    """One of these relays brings nothing without the other."""
    books = chain(last)
    books.join(0, [0], 5)
    assert books.clients[0].relays == (1, 4)
    books.want(0, [0], [load(0)])
    books.share()
    assert books.clients[0].rate > 0.95 * 40


def test_two_in_a_row_need_room_for_two() -> None:
    books = chain("NVLink")
    books._most = 1
    books.join(0, [0], 5)
    assert books.clients[0].relays == (1,)  # for copies between these two


def test_ranks_that_see_one_gpu_are_lent_all_or_what_was_asked_for() -> None:
    def relays(most: int | None) -> tuple[int, ...]:
        books = Ledger(graph_of("dgx1v"), most)
        books.join(0, [2], 8, [2])
        return books.clients[0].relays

    assert sorted(relays(None)) == [0, 1, 3, 4, 5, 6, 7]
    assert relays(0) == ()
    seeing_all = Ledger(graph_of("dgx1v"), 2)
    seeing_all.join(0, [2], 8)
    assert len(relays(2)) == 2 and relays(2) == seeing_all.clients[0].relays


def test_gpus_that_come_to_be_used_are_own() -> None:
    books = ledger("dgx_a100", [0, 1])
    before = books.clients[0].relays
    books.want(0, [0, before[0]], [])
    assert books.clients[0].gpus == (0, before[0])
    assert set(before[1:]) <= set(books.clients[0].relays)
    assert before[0] not in books.clients[0].relays


def test_demands_stay_within_the_lent_gpus() -> None:
    books = ledger("dgx_a100", [0, 1], most=1)
    books.want(0, [0], [load(0)])
    books.share()
    uplinks = 2 * 24.0  # GB/s, about: its own uplink and one more
    assert books.clients[0].rate < 1.2 * uplinks


@pytest.mark.parametrize(
    ("gpus", "demands", "named"),
    [
        ([8], [], "cuda:8"),
        ([0], [(-1, 2, 0, 0, 1.0)], "socket 2"),
        ([0], [(-1, 0, 9, 0, 1.0)], "cuda:9"),
    ],
)
def test_places_that_are_not_there(gpus: list[int], demands: list, named: str) -> None:
    books = ledger("dgx_a100", [0, 1])
    with pytest.raises(BadMessage, match=named):
        books.want(0, gpus, demands)
    books.share()
    check(books)


def test_more_gpus_than_there_are() -> None:
    with pytest.raises(BadMessage, match="9 GPUs"):
        Ledger(graph_of("dgx_a100")).join(0, [], 9)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(PLATFORMS), st.integers(0, 2**32))
def test_any_history(platform: str, seed: int) -> None:
    chance = random.Random(seed)
    books = Ledger(graph_of(platform))
    count = graph_of(platform).gpus
    for step in range(8):
        known = list(books.clients)
        act = chance.choice(["join", "join", "want", "want", "leave"]) if known else "join"
        if act == "join":
            own = chance.sample(range(count), chance.choice([0, 1, 1, 2]))
            books.join(step, own, count)
        elif act == "leave":
            books.leave(chance.choice(known))
        else:
            ends = [(-1, chance.choice([-2, -1, 0])), (chance.randrange(count), 0)]
            chance.shuffle(ends)
            both = (*ends[0], *ends[1], chance.choice([0.5, 1, 2]))
            books.want(chance.choice(known), [max(ends)[0]], [both, load(chance.randrange(count))])
        books.share()
        check(books)


def test_lent_and_learnt_multiply_and_stay_apart() -> None:
    graph = graph_of("dgx_a100")
    planner = TransferPlanner(graph)
    edge = graph.edges().index("u0>g0")

    def rate() -> float:
        return float(planner.plan([(HOST, (0, 0), 1.0)], relays=[1])[0]["rate"])

    full, link = rate(), graph.rate(edge)
    planner.set_scale(edge, 0.5)
    assert rate() == pytest.approx(link / 2)
    planner.lend([0.5] * len(graph.limits()))
    assert rate() == pytest.approx(link / 4)
    planner.set_scale(edge, 1)
    assert rate() == pytest.approx(full / 2)
    planner.lend([])
    assert rate() == pytest.approx(full)
    for wrong in ([0.5], [2.0] * len(graph.limits()), [float("nan")] * len(graph.limits())):
        with pytest.raises((InvalidArgument, ValueError), match="limits"):
            planner.lend(wrong)
    nothing = [0.0 if i == edge else 1.0 for i in range(len(graph.limits()))]
    planner.lend(nothing)
    reasons = dict(planner.plan([(HOST, (0, 0), 1.0)])[0]["refusals"])
    assert "u0>cuda:0 is lent to other processes" in reasons["cpu:0>cuda:0"]


def test_relays_of_each_demand() -> None:
    planner = TransferPlanner(graph_of("dgx_a100"))
    asked = [(HOST, (0, 0), 1.0), (HOST, (2, 0), 1.0)]
    for plan, allowed in zip(planner.plan(asked, relays=[1 << 4, 1 << 6]), (4, 6), strict=True):
        relays = {name for path in plan["paths"] for name in path["name"].split(">")[1:-1]}
        assert relays == {f"cuda:{allowed}"}
    with pytest.raises((InvalidArgument, ValueError), match="each demand"):
        planner.plan(asked, relays=[1])
