"""`glake.transfer.explain`: paths, reasons and sizes, as objects, text and JSON."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glake import transfer
from glake._C import CapacityGraph
from glake.errors import InvalidArgument, InvalidDevice, InvalidOption
from glake.platform_file import preset_file
from glake.transfer import planning
from glake.transfer.planning import planner_of
from glake.transfer.topology import from_preset

GIB, MIB = 1 << 30, 1 << 20


def test_a_plan_says_what_it_does_and_why() -> None:
    plan = transfer.explain(src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx_a100")
    assert (plan.plain, plan.bound, plan.equal_split) == pytest.approx(
        (23.75, 95.0, 83.12), abs=0.01
    )
    assert plan.rate == sum(path.rate for path in plan.paths) == pytest.approx(95)
    assert [path.name for path in plan.paths][0] == "cpu:0>cuda:0"
    assert plan.paths[1].hops == (("cpu:0", "cuda:2"), ("cuda:2", "cuda:0"))
    assert plan.paths[1].worker == 2
    reasons = {refusal.path: refusal.reason for refusal in plan.refusals}
    assert reasons["cpu:0>cuda:3>cuda:0"] == "cpu:0/pcie>u1 is full (cpu:0>cuda:2>cuda:0)"
    text = str(plan)
    for part in (
        "1 GiB on dgx_a100",
        "interleaved",
        "bound           95.0",
        "cpu:0/pcie>u1 is full",
    ):
        assert part in text
    out = json.loads(json.dumps(plan.to_dict()))
    assert out["bound"] == pytest.approx(95) and out["host"] == "interleaved"
    assert out["paths"][1]["hops"] == [["cpu:0", "cuda:2"], ["cuda:2", "cuda:0"]]
    assert out["refusals"][0].keys() == {"path", "reason"}


def test_the_source_comes_first_and_both_have_names() -> None:
    plan = transfer.explain(src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx_a100")
    assert str(plan).startswith("from cpu to cuda:0, 1 GiB on dgx_a100")
    named = transfer.explain(nbytes=GIB, dst="gpu0", src="cpu", platform="dgx_a100")
    assert str(named) == str(plan)  # devices have one name, however they are given
    assert named.paths == plan.paths and named.paths[0].hops == (("cpu:0", "cuda:0"),)
    back = transfer.explain(dst="cpu", src="gpu:0", nbytes=GIB, platform="dgx_a100")
    assert back.paths[0].hops == (("cuda:0", "cpu:0"),)
    with pytest.raises(InvalidArgument, match="ndarray is no place: .*copy.. takes arrays"):
        transfer.explain(src=np.zeros(4), dst="cpu", nbytes=GIB, platform="dgx_a100")


@pytest.mark.parametrize("other", ["cuda:1", "gpu1", "gpu:1"])
def test_a_copy_within_a_gpu_has_no_plan(other: str) -> None:
    with pytest.raises(InvalidArgument, match="from cuda:1 to .*both ends are cuda:1"):
        transfer.explain(src="cuda:1", dst=other, nbytes=GIB, platform="dgx_a100")


def test_edges_are_named_as_they_are_shown_or_as_in_a_file() -> None:
    plans = [
        transfer.explain(
            src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx_a100", scales={name: 0.5}
        )
        for name in ("s0>u1", "cpu:0/pcie>u1")
    ]
    assert plans[0] == plans[1] and plans[0].rate < 95


def test_relays_are_refused_where_they_gain_little() -> None:
    between = transfer.explain(src="cuda:0", dst="cuda:1", nbytes=GIB, platform="dgx_a100")
    assert [path.name for path in between.paths] == ["cuda:0>cuda:1"]
    assert between.rate == between.plain == 276 and between.bound == pytest.approx(301)
    assert between.host == "" and between.relays_from is None
    assert any("under 15 %" in refusal.reason for refusal in between.refusals)
    pcie = transfer.explain(src="cuda:5", dst="cpu:1", nbytes=GIB, platform="a10_l40s_x8")
    assert [path.name for path in pcie.paths] == ["cuda:5>cpu"] and pcie.host == "cpu:1"
    assert any("no NVLink" in refusal.reason for refusal in pcie.refusals)


def test_small_copies_go_directly() -> None:
    large = transfer.explain(src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx1v", host="local")
    assert large.relays_from is not None and len(large.paths) > 1
    assert transfer.explain(
        src="cpu", dst="cuda:0", nbytes=large.relays_from, platform="dgx1v", host="local"
    ).paths[1:]
    small = transfer.explain(
        src="cpu", dst="cuda:0", nbytes=large.relays_from // 2, platform="dgx1v", host="local"
    )
    assert [path.name for path in small.paths] == ["cpu>cuda:0"] and small.rate == small.plain
    assert any("plain copy" in refusal.reason for refusal in small.refusals)


def test_what_is_broken_is_planned_around() -> None:
    whole = transfer.explain(src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx_a100")
    half = transfer.explain(
        src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx_a100", scales={"s0>u1": 0.5}
    )
    assert half.bound == pytest.approx(whole.bound - 23.75 / 2) and half.rate == pytest.approx(
        half.bound
    )
    barred = transfer.explain(
        src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx_a100", exclude=[2, 3]
    )
    assert barred.rate == pytest.approx(95 - 23.75)
    assert any(r.reason == "cuda:2 may not relay" for r in barred.refusals)
    dead = transfer.explain(
        src="cpu", dst="cuda:0", nbytes=GIB, platform="a10_l40s_x8", scales={"s0>g0": 0}
    )
    assert not dead.paths and dead.rate == dead.plain == 0 and dead.expected_us is None
    assert "every way is dead" in str(dead) and json.dumps(dead.to_dict(), allow_nan=False)


def test_any_platform_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    row = json.loads(preset_file().read_text())["hgx_h800"]
    file.write_text(
        json.dumps({"per_copy_us": 5, "mine": {k: row[k] for k in row if k != "bounds"}})
    )
    wanted = transfer.explain(src="cpu", dst="cuda:7", nbytes=GIB, platform="hgx_h800").to_dict()
    for platform in (file, str(file), from_preset("hgx_h800")):
        got = transfer.explain(src="cpu", dst="cuda:7", nbytes=GIB, platform=platform).to_dict()
        assert got["paths"] == wanted["paths"] and got["bound"] == wanted["bound"]


def test_the_simulated_machine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLAKE_DRIVER", "sim:gb200_tray")
    assert transfer.explain(src="cpu", dst="cuda:3", nbytes=GIB).platform == "gb200_tray"


def test_without_the_solver_only_the_bound_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    planning._way.cache_clear()  # the cache may hold the bound
    plan = transfer.explain(src="cpu", dst="cuda:0", nbytes=GIB, platform="dgx_a100")
    assert plan.rate == pytest.approx(95)
    assert 'pip install "glake[transfer]"' in str(plan)
    out = plan.to_dict()
    assert out["bound"] is None and "pip install" in out["bound_absent"]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("cpu", "cuda:0", 0), {}, InvalidArgument),
        (("cpu", "cuda:0", -1), {}, InvalidArgument),
        (("cpu", "cuda:0", 1.5), {}, InvalidArgument),
        (("cpu", "cuda:0", True), {}, InvalidArgument),
        (("cpu", "cuda:0", 1 << 41), {}, InvalidArgument),
        (("cpu", "cpu", MIB), {}, InvalidArgument),
        (("cpu", "cuda:-1", MIB), {}, InvalidArgument),
        (("cuda:8", "cpu", MIB), {}, InvalidDevice),
        (("cpu", "cuda:0", MIB), {"exclude": [8]}, ValueError),
        (("cpu", "cuda:0", MIB), {"platform": "dgx1"}, InvalidOption),
        (("cpu", "cuda:0", MIB), {"platform": "absent.json"}, InvalidOption),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception]
) -> None:
    src, dst, nbytes = arguments
    with pytest.raises(error):
        transfer.explain(src=src, dst=dst, nbytes=nbytes, **{"platform": "dgx1v", **options})


def test_a_relay_may_be_reached_under_a_pcie_switch() -> None:
    # 0>2 by NVLink, 2>3 under their switch, 3>1 by NVLink; all uplinks are slow.
    pairs = [
        ("m0", "s0", 100),
        ("s0", "u0", 5),
        ("s0", "u1", 5),
        ("u0", "g0", 30),
        ("u0", "g1", 30),
    ]
    pairs += [("u1", "g2", 30), ("u1", "g3", 30), ("g0", "g2", 40), ("g3", "g1", 40)]
    edges = [[a, b, rate] for a, b, rate in pairs] + [[b, a, rate] for a, b, rate in pairs]
    text = json.dumps({"gpus": 4, "sockets": [[0, 1, 2, 3]], "edges": edges})
    (plan,) = planner_of(CapacityGraph(text)).plan([((0, 0), (1, 0), 1.0)])
    assert {path["name"]: path["rate"] for path in plan["paths"]} == {
        "cuda:0>cuda:1": 30,
        "cuda:0>cuda:2>cuda:3>cuda:1": 30,
    }


def _machine(seed: int) -> CapacityGraph:
    """A made-up machine whose sockets are well joined."""
    dice = random.Random(seed)
    gpus, sockets = dice.randint(2, 8), dice.randint(1, 2)
    edges: list[list[Any]] = []

    def both(a: str, b: str, low: float, high: float) -> None:
        edges.append([a, b, dice.uniform(low, high)])
        edges.append([b, a, dice.uniform(low, high)])

    for socket in range(sockets):
        both(f"m{socket}", f"s{socket}", 150, 400)
    if sockets == 2:
        both("s0", "s1", 60, 150)
    switch = dice.random() < 0.5
    shared = dice.random() < 0.5
    for gpu in range(gpus):
        up = f"s{gpu % sockets}"
        if shared:
            up = f"u{gpu // (2 * sockets) * sockets + gpu % sockets}"
            if not any(edge[1] == up for edge in edges):
                both(f"s{gpu % sockets}", up, 10, 60)
        both(up, f"g{gpu}", 10, 60)
        if switch:
            both(f"g{gpu}", "N", 100, 500)
        for other in range(0 if switch else gpu):
            if dice.random() < 0.4:
                both(f"g{other}", f"g{gpu}", 20, 100)
    homes = [[gpu for gpu in range(gpus) if gpu % sockets == s] for s in range(sockets)]
    return CapacityGraph(json.dumps({"gpus": gpus, "sockets": homes, "edges": edges}))


@pytest.mark.parametrize("seed", range(60))
def test_plans_come_near_the_bound_of_made_up_machines(seed: int) -> None:
    graph = _machine(seed)
    planner = planner_of(graph)
    copies = [("cpu:0", "cuda:0"), ("cuda:1", "cpu:0")]
    # The bound between GPUs counts flow over a PCIe switch that they share. No copy can choose that
    # way where NVLink joins them.
    if not any(name.startswith("u") for name in graph.edges()):
        copies.append(("cuda:0", "cuda:1"))
    for src, dst in copies:
        codes = [
            (int(end[5:]), 0) if end.startswith("cuda") else (-1, int(end[4:]))
            for end in (src, dst)
        ]
        (plan,) = planner.plan([(codes[0], codes[1], 1.0)])
        most = transfer.bound(graph, dst=dst, src=src)
        assert plan["rate"] <= transfer.bound(graph, dst=dst, src=src, relays=3) * (1 + 1e-6)
        if most >= 1.2 * plan["plain"]:
            assert plan["rate"] >= 0.95 * most, (src, dst)
        else:
            assert plan["rate"] >= plan["plain"] * 0.98
