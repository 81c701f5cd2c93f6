"""The probe over glake's driver, on simulated machines whose links have other rates than their
topology."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glake.platform_file import load_platforms
from glake.platforms import Edge, Platform, file_text
from glake.transfer.topology.calibration import Calibration
from glake.transfer.topology.copier import Copy, DriverCopier
from glake.transfer.topology.topology import Topology

PROGRAM = Path(__file__).with_name("probe_machine.py")


def probed(preset: str, variables: dict[str, str] | None = None, **case: Any) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GLAKE_")}
    environment |= {"GLAKE_DRIVER": f"sim:{preset}", **(variables or {})}
    done = subprocess.run(
        [sys.executable, PROGRAM, json.dumps(case)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def rates(platform: dict[str, Any]) -> dict[str, float]:
    return {f"{a}>{b}": rate for a, b, rate in platform["edges"]}


@pytest.mark.parametrize(
    ("preset", "links"),
    [
        ("dgx_a100", [["s0", "u1", 11.9], ["u2", "s1", 15.0], ["g3", "N", 100.0]]),
        ("hgx_h100_h200", [["s1", "g5", 30.0], ["s0", "s1", 60.0], ["m1", "s1", 150.0]]),
        ("dgx1v", [["u1", "s0", 6.5], ["g0", "g3", 20.0], ["s1", "u3", 20.0]]),
        ("a10_l40s_x8", [["s0", "g0", 12.0], ["g7", "s1", 30.0]]),
        ("gb200_tray", [["s0", "g0", 120.0], ["N", "g2", 500.0], ["s1", "s0", 60.0]]),
    ],
)
def test_links_of_another_speed_are_found(preset: str, links: list[list[Any]]) -> None:
    """Slowed uplinks, NVLinks, socket links and DRAM are found to 3 %, and engines plan by them."""
    out = probed(preset, links=links)
    true = {edge.name: edge.gb_per_s for edge in load_platforms()[preset].edges}
    true |= {f"{a}>{b}": rate for a, b, rate in links}
    found = rates(out["platform"])
    for name, rate in true.items():
        assert found[name] == pytest.approx(rate, rel=0.03), name
    kept = next((n for n in out["platform"]["assumed"] if n.startswith("not measured")), "")
    assert not {f"{a}>{b}" for a, b, _ in links} & set(kept.partition(": ")[2].split(", "))
    assert any(n.startswith("rates measured by a probe on 20") for n in out["platform"]["assumed"])
    assert out["engine"] == out["platform"]
    assert out["seconds"] < 1.5  # seconds that it keeps the GPUs
    assert not out["after_reset"]  # the probe's rates are dropped


def test_the_engine_plans_by_what_was_found() -> None:
    """A relay's uplink at half its speed carries half as much in the plan."""
    plans = [probed("dgx_a100", links=links)["plan"] for links in ([], [["s0", "u1", 11.9]])]
    over = [
        sum(
            path["rate"]
            for path in plan["paths"]
            if "cuda:2" in path["path"] or "cuda:3" in path["path"]
        )
        for plan in plans
    ]
    assert over[0] == pytest.approx(23.75, rel=0.03) and over[1] == pytest.approx(11.9, rel=0.03)


def test_a_hidden_uplink_is_found(tmp_path: Path) -> None:
    """Four GPUs look as if each had its own link, but pairs share switches that nothing shows."""
    up = [("m0", "s0", 200.0), ("s0", "u0", 30.0), ("s0", "u1", 24.0)]
    links = [*up, *((f"u{g // 2}", f"g{g}", 25.0) for g in range(4))]
    links += [("s0", "g4", 25.0), ("s0", "g5", 25.0)]
    shown = [("m0", "s0", 200.0), *(("s0", f"g{g}", 25.0) for g in range(6))]

    def platform(pairs: list[tuple[str, str, float]]) -> Platform:
        edges = tuple(Edge(*ends, rate) for a, b, rate in pairs for ends in ((a, b), (b, a)))
        return Platform(6, (tuple(range(6)),), edges)

    for name, pairs in (("true", links), ("shown", shown)):
        (tmp_path / f"{name}.json").write_text(file_text({"box": platform(pairs)}))
    out = probed(
        "box",
        {"GLAKE_SIM_PLATFORMS": str(tmp_path / "true.json")},
        nominal=str(tmp_path / "shown.json"),
    )
    limits = {tuple(sorted(names)): limit for names, limit in out["platform"]["joint"]}
    assert limits["s0>g0", "s0>g1"] == pytest.approx(30, rel=0.03)
    assert limits["g0>s0", "g1>s0"] == pytest.approx(30, rel=0.03)
    assert limits["s0>g2", "s0>g3"] == pytest.approx(24, rel=0.03)
    assert rates(out["platform"])["m0>s0"] == 200  # the memory is not blamed
    assert any(
        "cpu:0/pcie>cuda:2, cpu:0/pcie>cuda:3 share an uplink" in note
        for note in out["platform"]["assumed"]
    )


def test_no_room_for_buffers_leaves_all_as_it_was() -> None:
    out = probed("dgx1v", options={"memory": "20MiB"})
    assert out["error"][0] == "OutOfMemory" and not out["open"] and not out["kept"]
    assert out["blocks"] == 0 and out["streams"] == 0


def test_copies_that_stand_still_end_the_probe() -> None:
    out = probed("gb200_tray", links=[["g1", "N", 0]], repaired=[["g1", "N", 100.0]])
    assert out["error"][0] == "BusyTimeout" and "stand still" in out["error"][1]
    assert out["open"] and not out["kept"] and out["blocks"] == 0  # freed once copies end


def test_host_memory_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from glake.errors import CopyRefused

    def refuse(copies: Any, size: int, repeats: int) -> list[list[int]]:
        if any(place == (-1, 1) for pair in copies for place in pair):
            raise CopyRefused("the system gave no host memory on socket 1")
        return [[1000 * (r + 1) for r in range(repeats)] for _ in copies]

    monkeypatch.setattr("glake._C.time_copies", refuse)
    copier = DriverCopier(Topology("x", load_platforms()["dgx1v"], "test"))
    assert copier.rates([Copy("m1", "g0")]) == [0.0] == copier.rates([Copy("g0", "m1")])
    assert copier.notes == ["the system gave no host memory on socket 1"]
    assert copier.rates([Copy("m0", "g0")])[0] > 0


def test_limits_of_before_do_not_hold_faster_links_back() -> None:
    platform = load_platforms()["hgx_h100_h200"]
    faster = {"g0>N": 794.0, "N>g0": 794.0}
    applied = Calibration(faster).applied(Topology("x", platform, "test")).platform
    before, after = ({j.weights: j.gb_per_s for j in each.joint} for each in (platform, applied))
    name = (("g0>N", 1.0), ("N>g0", 1.0))
    assert after.pop(name) == 2 * before.pop(name) and after == before
    alone = Calibration({}, together=frozenset({frozenset({"g1>N", "N>g1"})})).applied(
        Topology("x", platform, "test")
    )
    assert len(alone.platform.joint) == len(platform.joint) - 1
    assert replace(alone.platform, joint=(), assumed=()) == replace(platform, joint=(), assumed=())
