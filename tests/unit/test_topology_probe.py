"""The probe against copies of known rates, and what it keeps between processes."""

import json
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import machines
import pytest

from glake.platform_file import load_platforms
from glake.platforms import Edge, Joint, Platform
from glake.transfer import topology
from glake.transfer.topology import Topology, calibration_cache
from glake.transfer.topology.copier import Copy
from glake.transfer.topology.discovery import discover
from glake.transfer.topology.nvml import Nvml
from glake.transfer.topology.probe import probe
from glake.transfer.topology.rates import ESTIMATE
from glake.transfer.topology.routes import Routes
from glake.transfer.topology.sysfs import Sysfs


class KnownCopier:
    """Copies that share the links of a platform max-min fairly, as the simulator's do."""

    def __init__(self, platform: Platform) -> None:
        self._routes = Routes(platform)
        self._limits = [({edge.name: 1.0}, edge.gb_per_s) for edge in platform.edges]
        self._limits += [(dict(joint.weights), joint.gb_per_s) for joint in platform.joint]
        self.calls = 0

    def rates(self, copies: Sequence[Copy]) -> list[float]:
        self.calls += 1
        ways = [{e.name for e in self._routes.between(c.source, c.target)} for c in copies]
        rates, growing = [0.0] * len(copies), set(range(len(copies)))
        while growing:
            steps = []
            for weights, limit in self._limits:
                load = [sum(weights.get(name, 0) for name in way) for way in ways]
                slope = sum(load[i] for i in growing)
                if slope:
                    used = sum(w * r for w, r in zip(load, rates, strict=True))
                    steps.append(((limit - used) / slope, [i for i in growing if load[i]]))
            step, full = min(steps, key=lambda each: each[0])
            for i in growing:
                rates[i] += max(step, 0.0)
            growing -= set(full)
        return rates


def wrong(platform: Platform, factor: float) -> Platform:
    edges = tuple(replace(edge, gb_per_s=edge.gb_per_s * factor) for edge in platform.edges)
    return replace(platform, edges=edges, joint=(), assumed=(ESTIMATE + "all of it", "a fact"))


@pytest.mark.parametrize("name", list(load_platforms()))
def test_probe_finds_what_copies_can_reach(name: str) -> None:
    """It begins with rates that are all too low. Its result predicts each plain copy's rate."""
    true = load_platforms()[name]
    guess = Topology(name, wrong(true, 0.4), "guess")
    found = probe(guess.platform, KnownCopier(true)).applied(guess).platform
    expected, predicted = Routes(true), Routes(found)
    nodes = [f"g{g}" for g in range(true.gpus)] + [f"m{s}" for s in range(len(true.sockets))]
    for a in nodes:
        for b in nodes:
            if a != b and not a[0] == b[0] == "m":
                assert predicted.rate(a, b) == pytest.approx(expected.rate(a, b), rel=0.01), (a, b)
    gpus = [Copy(f"m{true.socket_of(g)}", f"g{g}") for g in range(true.gpus)]
    back = [Copy(copy.target, copy.source) for copy in gpus]
    for copies in (gpus, back, [gpus[0], back[0]], [*gpus, *back]):
        runs, says = (KnownCopier(each).rates(copies) for each in (true, found))
        assert sum(says) == pytest.approx(sum(runs), rel=0.05)


def test_uplink_and_joint_limit_are_told_apart() -> None:
    true = load_platforms()["dgx_a100"]
    guess = wrong(true, 1.5)  # too fast: uplinks and links must come down
    found = probe(guess, KnownCopier(true))
    assert found.rates["s0>u0"] == 23.75 and found.rates["u0>s0"] == 20.35
    assert found.rates["g0>N"] == 276
    assert found.joint and all(len(each.weights) == 2 for each in found.joint)


def test_an_unsaturated_link_keeps_its_estimate() -> None:
    true = load_platforms()["hgx_h100_h200"]
    two = topology.first_gpus(true, 2)
    guess = wrong(two, 1.0)
    found = probe(guess, KnownCopier(two))
    assert "m0>s0" not in found.rates  # two GPUs' links cannot fill it
    applied = found.applied(Topology("two", guess, "guess")).platform
    assert any("not measured" in note and "cpu:0>cpu:0/pcie" in note for note in applied.assumed)
    assert ESTIMATE + "all of it" in applied.assumed


def test_poor_peer_copies_are_told() -> None:
    class Poor(KnownCopier):
        def rates(self, copies: Sequence[Copy]) -> list[float]:
            pair = all(c.source[0] == c.target[0] == "g" for c in copies)
            return [9.9 if pair else rate for rate in super().rates(copies)]

    true = load_platforms()["a10_l40s_x8"]
    notes = probe(true, Poor(true)).notes
    assert "cuda:0 to cuda:1 over PCIe runs at 9.9 GB/s where the links allow 25.2" in notes


def test_probe_is_short() -> None:
    true = load_platforms()["hgx_h100_h200"]
    copier = KnownCopier(true)
    probe(true, copier)
    assert copier.calls < 100


@pytest.fixture
def known(tmp_path: Path) -> Topology:
    box = machines.dgx1v()
    found = discover({}, Nvml(box.nvml()), Sysfs(box.sysfs(tmp_path)))
    return Topology("this_machine", found.platform, "test", found.addresses)


def test_cache_round_trip(known: Topology, tmp_path: Path) -> None:
    found = probe(known.platform, KnownCopier(load_platforms()["dgx1v"]))
    found = replace(found, joint=(Joint((("g0>g1", 1.0), ("g1>g0", 0.5)), 30.0),))
    file = calibration_cache.store(known, found, tmp_path / "deep" / "er")
    assert file is not None and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert calibration_cache.load(known, file.parent) == found
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    other = replace(known, devices=("another",))
    assert calibration_cache.load(other, file.parent) is None
    assert found.applied(known).platform.joint == found.joint


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"version": 2}',
        ("rates", {"g0>g1": -1}), ("rates", {"g0>g9": 1}), ("rates", {"g0>g1": "1"}),
        ("version", 0), ("topology", "x"), ("notes", [1]), ("joint", [[{"g0>g1": 1}]]),
        ("rates", {"g0>g1": float("nan")}), ("joint", [[{"g0>N": 1}, 5]]),
    ],
)  # fmt: skip
def test_damaged_cache_is_ignored_with_a_warning(
    damage: bytes | tuple[str, object], known: Topology, tmp_path: Path
) -> None:
    found = probe(known.platform, KnownCopier(known.platform))
    file = calibration_cache.store(known, found, tmp_path / "cache")
    assert file is not None
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), damage[0]: damage[1]}))
    with pytest.warns(UserWarning, match="ignored"):
        assert calibration_cache.load(known, tmp_path / "cache") is None


def test_cache_that_cannot_be_written_is_a_warning(known: Topology, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = probe(known.platform, KnownCopier(known.platform))
    with pytest.warns(UserWarning, match="not kept"):
        assert calibration_cache.store(known, found, tmp_path / "file") is None


def test_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    where = calibration_cache.directory({"XDG_CACHE_HOME": str(tmp_path)})
    assert where == tmp_path / "glake" / "topology"
    assert calibration_cache.directory({}) == Path.home() / ".cache/glake/topology"


def test_current_applies_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box = machines.dgx1v()
    found = discover({}, Nvml(box.nvml()), Sysfs(box.sysfs(tmp_path / "root")))
    monkeypatch.setattr("glake.transfer.topology.discovery.discover", lambda environ: found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain = topology.current({})
    assert "probed" not in plain.source and plain.devices[0] == "Tesla V100-SXM2 0000:06:00.0"
    true = replace(wrong(found.platform, 0.9), assumed=())
    calibration_cache.store(plain, probe(plain.platform, KnownCopier(true)))
    measured = topology.current({})
    assert measured.platform.rate("g0", "g3") == pytest.approx(48 * 0.9)
    assert "probed" in measured.source
    assert topology.current({}, calibrated=False) == plain


def test_a_link_behind_a_full_uplink_keeps_its_estimate() -> None:
    true = load_platforms()["dgx_a100"]
    found = probe(true, KnownCopier(true)).rates
    assert "u0>g0" not in found and found["s0>u0"] == 23.75
    slow = tuple(replace(e, gb_per_s=12.0) if e.name == "u0>g0" else e for e in true.edges)
    found = probe(true, KnownCopier(replace(true, edges=slow, joint=()))).rates
    assert found["u0>g0"] == 12 and "u0>g1" not in found


def test_nested_switches_are_told_apart() -> None:
    """Two full inner uplinks do not make the outer one look full."""
    links = [("m0", "s0", 200.0), ("s0", "u0", 60.0), ("u0", "u1", 25.0), ("u0", "u2", 25.0)]
    links += [(f"u{1 + g // 2}", f"g{g}", 20.0) for g in range(4)]
    edges = [Edge(*pair, rate) for a, b, rate in links for pair in ((a, b), (b, a))]
    true = Platform(4, ((0, 1, 2, 3),), tuple(edges))
    found = probe(true, KnownCopier(true)).rates
    assert found["u0>u1"] == 25 and found["u2>u0"] == 25 and found["u1>g0"] == 20
    assert "s0>u0" not in found and "m0>s0" not in found
    narrow = tuple(replace(e, gb_per_s=40.0) if e.name == "s0>u0" else e for e in edges)
    found = probe(true, KnownCopier(replace(true, edges=narrow))).rates
    assert found["s0>u0"] == 40 and "u0>s0" not in found
