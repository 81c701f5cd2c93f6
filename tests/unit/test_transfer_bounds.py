"""Bounds, plain copies, equal shares and plans against every row of the platforms file."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from glake import transfer
from glake._C import CapacityGraph
from glake.errors import InvalidArgument, InvalidDevice, PackageMissing
from glake.platform_file import preset_file
from glake.transfer import baselines
from glake.transfer.place import ends, graph_of
from glake.transfer.planning import planner_of

PLATFORMS = {k: v for k, v in json.loads(preset_file().read_text()).items() if isinstance(v, dict)}
CLOSE = 0.005


@dataclass
class Row:
    """A row of `bounds`: its copies, the place of host memory, and what is broken."""

    copies: list[tuple[str, str]]
    host: str
    scales: dict[str, float] = field(default_factory=dict)
    exclude: list[int] = field(default_factory=list)


def _uplink(edges: set[str], gpu: int) -> list[str]:
    """Both directions of a GPU's shared uplink. If it has none, those of its own PCIe link."""
    switch = next((e.split(">")[0] for e in edges if re.fullmatch(rf"u\d+>g{gpu}", e)), f"g{gpu}")
    return [e for e in edges if re.fullmatch(rf"s\d+>{switch}|{switch}>s\d+", e)]


def _faults(row: Row, name: str, case: str, edges: set[str]) -> None:
    if "uplink half" in name:
        gpu = int(re.search(r"g(\d+)", case)[1])
        row.scales = dict.fromkeys(_uplink(edges, gpu), 0.5)
    elif "excluded" in name:
        row.exclude = [int(case.removeprefix("g"))]
    elif pair := re.fullmatch(r"pair (\d)(\d)", case):
        a, b = pair.groups()
        row.scales = {f"g{a}>g{b}": 0, f"g{b}>g{a}": 0}
    else:
        links, gpu = re.fullmatch(r"1 of (\d+) links of (g\d+)", case).groups()
        row.scales = dict.fromkeys((f"{gpu}>N", f"N>{gpu}"), 1 - 1 / int(links))


def _row(platform: dict[str, Any], name: str, bound: dict[str, Any]) -> Row:
    row = Row([], "local" if "local" in name else "interleaved")
    gpus = range(platform["gpus"])
    if found := re.match(r"p2p (\d+)>(\d+)", name):
        row.copies = [(f"cuda:{found[1]}", f"cuda:{found[2]}")]
    elif found := re.match(r"two h2d .*\((\d+),(\d+)\)", name):
        row.copies = [("cpu", f"cuda:{gpu}") for gpu in found.groups()]
    elif name.startswith("all h2d"):
        row.copies = [("cpu", f"cuda:{gpu}") for gpu in gpus]
    elif name.startswith("all d2h"):
        row.copies = [(f"cuda:{gpu}", "cpu") for gpu in gpus]
    elif name.startswith("bidir"):
        row.copies = [("cpu", "cuda:0"), ("cuda:0", "cpu")]
    else:
        row.copies = [("cpu", "cuda:0") if name.startswith("h2d") else ("cuda:0", "cpu")]
    if "case" in bound:
        _faults(row, name, bound["case"], {f"{a}>{b}" for a, b, _ in platform["edges"]})
    return row


def _rows(platform: str) -> Iterator[tuple[str, dict[str, Any], Row]]:
    for name, bound in PLATFORMS[platform]["bounds"].items():
        yield name, bound, _row(PLATFORMS[platform], name, bound)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_bounds_equal_the_platforms_file(platform: str) -> None:
    graph = graph_of(platform)
    for name, wanted, row in _rows(platform):
        where = {"host": row.host, "scales": row.scales, "exclude": row.exclude}
        if len(row.copies) == 1:
            src, dst = row.copies[0]
            got = {"bound": transfer.bound(graph, dst=dst, src=src, **where)}
        else:
            copies = [transfer.Ends(dst=dst, src=src) for src, dst in row.copies]
            joint = transfer.joint_bound(graph, copies, **where)
            got = {"bound": joint.total, "fair_each": joint.fair}
        assert got == pytest.approx({key: wanted[key] for key in got}, rel=CLOSE), name


@pytest.mark.parametrize("platform", PLATFORMS)
def test_plain_and_equal_shares_equal_the_platforms_file(platform: str) -> None:
    graph = graph_of(platform)
    for name, wanted, row in _rows(platform):
        plain = baselines.plain(graph, row.copies, host=row.host, scales=row.scales)
        shares = baselines.equal_shares(
            graph, row.copies, host=row.host, scales=row.scales, exclude=row.exclude
        )
        if "(nolink,xsock)" in name and plain > wanted["plain"]:
            continue  # measured slower than any edge of the graph
        assert (plain, shares) == pytest.approx(
            (wanted["plain"], wanted["equal_shares"]), rel=CLOSE
        ), name


@pytest.mark.parametrize("platform", PLATFORMS)
def test_plans_come_near_the_bound_and_not_above(platform: str) -> None:
    graph = graph_of(platform)
    for name, wanted, row in _rows(platform):
        planner = planner_of(graph, row.scales, row.exclude)
        demands = [ends(graph, *copy, row.host) for copy in row.copies]
        plans = planner.plan([(src.code, dst.code, 1.0) for src, dst in demands])
        total = sum(plan["rate"] for plan in plans)
        # The file's bound is by two relays.
        copies = [transfer.Ends(dst=dst, src=src) for src, dst in row.copies]
        most = transfer.joint_bound(
            graph, copies, host=row.host, scales=row.scales, exclude=row.exclude, relays=3
        ).total
        assert total <= most * (1 + CLOSE) and most >= wanted["bound"] * (1 - CLOSE), name
        gain = wanted["bound"] >= 1.15 * wanted["plain"]
        assert total >= 0.95 * (wanted["bound"] if gain else wanted["plain"]), name


def test_interleaved_memory_gives_equal_parts() -> None:
    # The far socket's half comes over the socket link, and the near half has to keep its pace.
    graph = CapacityGraph(
        json.dumps(
            {
                "gpus": 1,
                "sockets": [[0], []],
                "edges": [["m0", "s0", 100], ["s0", "m0", 100], ["m1", "s1", 100]]
                + [["s1", "m1", 100], ["s0", "s1", 10], ["s1", "s0", 10]]
                + [["s0", "g0", 50], ["g0", "s0", 50]],
            }
        )
    )
    assert transfer.bound(graph, dst="cuda:0", src="cpu", host="interleaved") == pytest.approx(20)
    assert transfer.bound(graph, dst="cuda:0", src="cpu", host="local") == pytest.approx(50)
    assert transfer.bound(graph, dst="cuda:0", src="cpu:1") == pytest.approx(10)
    assert baselines.plain(graph, [("cpu", "cuda:0")], host="interleaved") == pytest.approx(20)


def test_relays_count() -> None:
    # dgx1v reaches 49.2 with two relays in a row, 36.9 with one.
    assert transfer.bound("dgx1v", dst="cuda:0", src="cpu", host="interleaved", relays=1) < 37
    assert transfer.bound("dgx1v", dst="cuda:0", src="cpu", relays=0) == pytest.approx(12.3)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        (("cpu", "cpu:1"), {}, InvalidArgument, "one end must be a GPU"),
        (("cpu", "cuda:8"), {}, InvalidDevice, "8 GPUs"),
        (("cpu:2", "cuda:0"), {}, InvalidDevice, "2 sockets"),
        (("tpu0", "cuda:0"), {}, InvalidArgument, "cuda:GPU"),
        (("cuda:0", "cuda:0"), {}, InvalidArgument, "both ends are cuda:0"),
        (("cpu", "cuda:0"), {"host": "remote"}, InvalidArgument, "interleaved"),
        (("cpu", "cuda:0"), {"scales": {"g0>g9": 0}}, InvalidArgument, "such as cpu:0>cpu:0/pcie"),
        (("cpu", "cuda:0"), {"scales": {"g0>g1": -1}}, InvalidArgument, "-1"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: tuple[str, str], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        transfer.bound("dgx1v", dst=arguments[1], src=arguments[0], **options)


def test_without_the_solver_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(PackageMissing, match=r'pip install "glake\[transfer\]"'):
        transfer.bound("dgx1v", dst="cuda:0", src="cpu")
