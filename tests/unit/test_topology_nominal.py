"""The probe on machines that have their topology's rates, where plans stay, and on others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from random_platforms import random_platform
from test_topology_copier import probed
from test_topology_probe import KnownCopier

from glake import transfer
from glake.platform_file import load_platforms
from glake.platforms import Edge, Joint, Platform, file_text
from glake.transfer.topology import Topology, from_file
from glake.transfer.topology.probe import probe

_LINKS = [
    ("m0", "s0", 90, 70), ("m1", "s1", 40, 36), ("m2", "s2", 18, 14), ("s0", "s1", 32, 28),
    ("s1", "s2", 16, 12), ("s0", "s2", 8, 9), ("s0", "u0", 22, 20), ("u0", "g0", 18, 15),
    ("u0", "g1", 18, 16), ("s1", "g2", 26, 22), ("s2", "g3", 12, 10), ("g0", "g1", 60, 60),
    ("g0", "g2", 45, 35), ("g1", "g3", 21, 21),
]  # fmt: skip
# One uplink alone leads to socket 0's host memory, and both directions share it.
ONE_UPLINK = Platform(
    4,
    ((0, 1), (2,), (3,)),
    tuple(edge for a, b, out, back in _LINKS for edge in (Edge(a, b, out), Edge(b, a, back))),
    (Joint((("s0>u0", 1.0), ("u0>s0", 0.7)), 25.0),),
)


def _plans(platform: Platform) -> dict[tuple[str, str], float]:
    """GB/s planned between all pairs of places with a GPU among them."""
    gpus = [f"cuda:{gpu}" for gpu in range(platform.gpus)]
    places = [*gpus, *(f"cpu:{socket}" for socket in range(len(platform.sockets)))]
    pairs = [(a, b) for a in places for b in places if a != b and (a in gpus or b in gpus)]
    topology = Topology("box", platform, "test")
    return {
        (src, dst): transfer.explain(src=src, dst=dst, nbytes=1 << 30, platform=topology).rate
        for src, dst in pairs
    }


def _after(believed: Platform, true: Platform) -> Platform:
    found = probe(believed, KnownCopier(true))
    return found.applied(Topology("box", believed, "test")).platform


@pytest.mark.parametrize("which", ["one uplink", "hgx_h20", 2, 5, 10])
def test_a_machine_as_believed_keeps_its_plans(which: str | int, tmp_path: Path) -> None:
    """On the simulated driver the probe finds nothing that the platform does not say."""
    if which == "one uplink":
        platform = ONE_UPLINK
    else:
        platform = random_platform(which) if isinstance(which, int) else load_platforms()[which]
    file = tmp_path / "boxes.json"
    file.write_text(file_text({"box": platform}))
    out = probed("box", {"GLAKE_SIM_PLATFORMS": str(file)})
    file.write_text(json.dumps({"box": out["platform"]}))
    assert _plans(from_file(file).platform) == pytest.approx(_plans(platform), rel=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_random_machines_keep_their_plans(seed: int) -> None:
    """The topology has the machine's limits, or none of them."""
    platform = random_platform(seed)
    plans = _plans(platform)
    assert _plans(_after(platform, platform)) == pytest.approx(plans, rel=0.01)
    assert _plans(_after(replace(platform, joint=()), platform)) == pytest.approx(plans, rel=0.03)


def test_a_limit_nobody_knew_of_is_the_uplinks_alone() -> None:
    """The limit of the uplink explains the rates of its GPUs' links and of the memory, so that
    these get no limits."""
    found = probe(replace(ONE_UPLINK, joint=()), KnownCopier(ONE_UPLINK))
    assert {name for joint in found.joint for name, _ in joint.weights} == {"s0>u0", "u0>s0"}
    assert not {"m0>s0", "s0>m0"} & found.rates.keys()


def test_a_limit_that_is_gone_is_dropped() -> None:
    found = _after(ONE_UPLINK, replace(ONE_UPLINK, joint=()))
    assert not found.joint


def test_limits_of_other_links_stay() -> None:
    """A limit over two links one way is not taken for one over both directions of a link."""
    pair = Joint((("s1>g2", 1.0), ("s0>u0", 1.0)), 40.0)
    believed = replace(ONE_UPLINK, joint=(*ONE_UPLINK.joint, pair))
    slower = replace(believed, joint=(replace(ONE_UPLINK.joint[0], gb_per_s=22.0), pair))
    found = _after(believed, slower).joint
    assert pair in found and ONE_UPLINK.joint[0] not in found


@pytest.mark.parametrize(
    ("edge", "rate"),
    [("s0>u0", 12.0), ("g2>s1", 9.0), ("s2>s0", 4.0), ("u0>g1", 6.0), ("g0>g2", 20.0)],
)
def test_a_slowed_link_is_found_beside_a_limit(edge: str, rate: float) -> None:
    edges = tuple(replace(e, gb_per_s=rate) if e.name == edge else e for e in ONE_UPLINK.edges)
    slow = replace(ONE_UPLINK, edges=edges)
    found = _after(ONE_UPLINK, slow)
    assert {e.name: e.gb_per_s for e in found.edges}[edge] == pytest.approx(rate, rel=0.01)
    assert _plans(found) == pytest.approx(_plans(slow), rel=0.03)
    assert found.joint == ONE_UPLINK.joint


def test_slow_memory_of_one_gpu_is_not_its_links() -> None:
    """Another socket's memory shows that the GPU's own link carries more."""
    edges = tuple(
        replace(e, gb_per_s=5.0 if e.name == "m1>s1" else e.gb_per_s) for e in ONE_UPLINK.edges
    )
    slow = replace(ONE_UPLINK, edges=edges)
    found = _after(ONE_UPLINK, slow)
    assert found.rate("m1", "s1") == 5 and found.rate("s1", "g2") == 26
    assert _plans(found) == pytest.approx(_plans(slow), rel=0.03)
