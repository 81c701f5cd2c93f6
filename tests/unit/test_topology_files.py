"""Platforms files: what is taken, what is refused and how, and where topologies come from."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from glake import transfer
from glake.errors import InvalidDevice, InvalidOption, InvalidPlatform
from glake.platform_file import load_platforms, preset_file, read_file
from glake.platforms import Platform, file_text
from glake.transfer import topology
from glake.transfer.place import graph_of
from glake.transfer.topology.routes import Routes, Way

GOOD: dict[str, Any] = {
    "gpus": 2,
    "sockets": [[0], [1]],
    "edges": [
        ["m0", "s0", 60], ["s0", "m0", 60], ["m1", "s1", 60], ["s1", "m1", 60],
        ["s0", "s1", 13], ["s1", "s0", 13.5], ["s0", "u0", 12], ["u0", "s0", 12],
        ["u0", "g0", 12], ["g0", "u0", 13], ["s1", "g1", 12], ["g1", "s1", 13],
        ["g0", "N", 100], ["N", "g0", 100],
    ],
    "joint": [[{"g0>N": 1, "N>g0": 0.5}, 120]],
    "assumed": ["a word"],
}  # fmt: skip


def written(content: Any, path: Path) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_bare_platform_and_file_of_several(tmp_path: Path) -> None:
    bare = topology.from_file(written(GOOD, tmp_path / "box.json"))
    assert bare.name == "box" and bare.platform.joint[0].weights == (("g0>N", 1.0), ("N>g0", 0.5))
    many = written({"_note": "x", "per_copy_us": 5, "a": GOOD, "b": GOOD}, tmp_path / "many.json")
    assert topology.from_file(many, "b").platform.copy_us == 5
    with pytest.raises(InvalidPlatform, match=r"2 platforms: choose one with --name: a, b"):
        topology.from_file(many)
    with pytest.raises(InvalidOption, match=r"no platform 'c' in .*many.json: there are a, b"):
        topology.from_file(many, "c")


def test_presets_survive_writing_and_reading(tmp_path: Path) -> None:
    presets = load_platforms()
    file = written(file_text(presets), tmp_path / "all.json")
    assert read_file(file) == presets
    assert "\\u" not in file_text({"größe": presets["dgx1v"]})


def changed(path: str, value: Any) -> dict[str, Any]:
    row = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    at: Any = row
    for step in way:
        at = at[int(step) if step.isdigit() else step]
    if value is KeyError:
        del at[int(last) if last.isdigit() else last]
    elif last == "+":
        at.append(value)
    else:
        at[int(last) if last.isdigit() else last] = value
    return row


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("gpus", KeyError, r"gpus: missing"),
        ("gpus", 0, r"gpus: 0 is no whole number from 1 to 16"),
        ("gpus", True, r"gpus: True is no whole number"),
        ("gpus", 17, r"from 1 to 16"),
        ("gpus", "2", r"gpus: '2'"),
        ("sockets", 2, r"sockets: 2 is no list"),
        ("sockets", [], r"sockets: there is none"),
        ("sockets", [[0]], r"sockets: GPU 1 is on none; list it on one"),
        ("sockets", [[0, 1], [1]], r"sockets: GPU 1 is there twice"),
        ("sockets", [[0], [2]], r"sockets: 2 is no GPU; they are 0 to 1"),
        ("sockets", [[1], [0]], r"sockets: g1 is listed on socket 0, not under it"),
        ("edges", {}, r"edges: \{\} is no list"),
        ("edges.+", ["g0", "g1"], r"edges\[14\]: \['g0', 'g1'\] is not \[from, to, GB/s\]"),
        ("edges.+", ["g0", "g1", -1], r"edges\[14\] g0>g1: -1 is not above 0.*give GB/s"),
        ("edges.+", ["g0", "g1", 0], r"0 is not above 0"),
        ("edges.+", ["g0", "g1", 24e9], r"at most 100000; give GB/s"),
        ("edges.+", ["g0", "g1", 10**400], r"1000.* is not above 0"),
        ("edges.+", ["g0", "g1", "24"], r"'24' is no number"),
        ("edges.+", ["g0", "g1", None], r"None is no number"),
        ("edges.+", ["g0", "u0", 1], r"edges\[14\]: g0>u0 is there twice"),
        ("edges.+", ["g0", "g2", 1], r"edge g0>g2: no g2; the last is g1"),
        ("edges.+", ["m2", "s1", 1], r"edge m2>s1: no m2"),
        ("edges.+", ["m0", "s1", 1], r"edge m0>s1: no link joins"),
        ("edges.+", ["m0", "g0", 1], r"edge m0>g0: no link joins"),
        ("edges.+", ["g0", "g0", 1], r"edge g0>g0: no link joins"),
        ("edges.+", ["g0", "x1", 1], r"'x1' is no node"),
        ("edges.+", ["g0", "g01", 1], r"'g01' is no node"),
        ("edges.0", ["u0", "u1", 1], r"socket 0 has no m0>s0; add the DRAM edge"),
        ("edges.1", ["u0", "u1", 1], r"socket 0 has no s0>m0"),
        ("edges.10", ["u0", "u1", 1], r"g1 and host memory m0 .* from host to GPU"),
        ("edges.11", ["u0", "u1", 1], r"g1 and host memory m0 .* from GPU to host"),
        ("joint", 5, r"joint: 5 is no list"),
        ("joint.+", [{}, 5], r"joint\[1\]: \[\{\}, 5\] is not"),
        ("joint.+", [{"g0>g1": 1}, 5], r"joint\[1\]: no edge 'g0>g1'"),
        ("joint.+", [{"g0>N": 0}, 5], r"joint\[1\] g0>N: 0 is not above 0"),
        ("joint.+", [{"g0>N": 1}, 0], r"joint\[1\]: 0 is not above 0"),
        ("assumed", "x", r"assumed: 'x' is no list"),
        ("assumed", [1], r"assumed: 1 is no text"),
        ("numa_nodes", [[0]], r"numa_nodes: 1 lists for 2 sockets"),
        ("numa_nodes", [[0], [0]], r"numa_nodes: 0 is no NUMA node of one socket"),
        ("numa_nodes", [[0], [1024]], r"numa_nodes: 1024 is no NUMA node; take 0 to 1023"),
        ("numa_nodes", [[0], [10**20]], r"numa_nodes: 1(0{20}) is no NUMA node; take 0 to 1023"),
        ("numa_nodes", [[0], ["1"]], r"numa_nodes: '1' is no NUMA node; take 0 to 1023"),
        ("per_copy_us", -1, r"per_copy_us: -1 is not above 0"),
        ("jiont", [], r"jiont: no such field; did you mean 'joint'"),
    ],
)
def test_bad_field(path: str, value: Any, said: str, tmp_path: Path) -> None:
    file = written(changed(path, value), tmp_path / "box.json")
    with pytest.raises(InvalidPlatform, match=said) as caught:
        read_file(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(InvalidPlatform, match=r"box.json: here: "):
        read_file(written({"here": changed(path, value)}, file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"line 1 column 2: .*no JSON"),
        ("", r"line 1 column 1"),
        ("[1]", r"top level: \[1\] is no JSON object"),
        ("{}", r"top level: it has no platform"),
        ('{"per_copy_us": 8}', r"it has no platform"),
        ('{"a": 3}', r"a: 3 is no platform"),
        ('{"a": {}, "a": {}}', r"a: given twice; keep one"),
        ('{"a": NaN}', r"numbers: NaN is none"),
        ('{"a": -Infinity}', r"numbers: -Infinity is none"),
        ("[" * 100000, r"no JSON"),
    ],
)
def test_bad_text(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidPlatform, match=said):
        read_file(written(text, tmp_path / "box.json"))


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlatform, match=r"no.json cannot be read: No such file"):
        read_file(tmp_path / "no.json")
    with pytest.raises(InvalidPlatform, match=r"cannot be read: Is a directory"):
        read_file(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\x00")
    with pytest.raises(InvalidPlatform, match=r"no JSON text"):
        read_file(tmp_path / "bytes.json")


def test_a_field_of_another_kind_is_ignored_and_said(tmp_path: Path) -> None:
    row = {**GOOD, "vendor": {"x": 1}, "_comment": 3, "bounds": {}}
    found = topology.from_file(written(row, tmp_path / "box.json")).platform
    assert found.assumed == ("a word", "field 'vendor' of the file was not understood and ignored")


def test_the_simulators_platform() -> None:
    presets = load_platforms()
    assert topology.current({"GLAKE_DRIVER": "sim"}).platform == presets["hgx_h100_h200"]
    assert topology.current({"GLAKE_DRIVER": "sim:dgx1v"}).name == "dgx1v"
    chosen = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_PRESET": "gb200_tray"}
    assert topology.current(chosen).platform == presets["gb200_tray"]
    library = str(preset_file().with_name("libsimcuda.so"))
    assert topology.current({**chosen, "GLAKE_DRIVER": library}).name == "gb200_tray"
    with pytest.raises(InvalidOption, match="no platform 'x' in .*there are dgx1v"):
        topology.current({"GLAKE_DRIVER": "sim:x"})


def test_the_simulators_own_platforms_and_device_count(tmp_path: Path) -> None:
    file = written({"mine": GOOD}, tmp_path / "mine.json")
    environ = {"GLAKE_DRIVER": "sim:mine", "GLAKE_SIM_PLATFORMS": str(file)}
    assert topology.current(environ).platform.gpus == 2
    one = topology.current({**environ, "GLAKE_SIM_DEVICES": "1"})
    assert one.platform.sockets == ((0,), ()) and one.source.endswith("its first 1 GPUs")
    assert not any("g1" in edge.name for edge in one.platform.edges)
    with pytest.raises(InvalidOption, match="mine has 2 GPUs, 3 were asked for"):
        topology.current({**environ, "GLAKE_SIM_DEVICES": "3"})


def test_fewer_gpus_lose_their_terms_of_joint_limits() -> None:
    two = topology.first_gpus(load_platforms()["hgx_h100_h200"], 2)
    names = {name for joint in two.joint for name, _ in joint.weights}
    assert names == {"m0>s0", "s0>m0", "m1>s1", "s1>m1", "g0>N", "N>g0", "g1>N", "N>g1"}


@pytest.mark.parametrize("name", list(load_platforms()))
def test_plain_routes_are_the_bounds_tables(name: str) -> None:
    """The platforms file states a plain copy's rate for GPU 0's own memory and peers."""
    content = json.loads(preset_file().read_text())[name]["bounds"]
    platform: Platform = load_platforms()[name]
    routes = Routes(platform)
    assert routes.rate("m0", "g0") == content["h2d local"]["plain"]
    assert routes.rate("g0", "m0") == content["d2h local"]["plain"]
    for text, row in content.items():
        if text.startswith("p2p "):
            a, b = text.split()[1].split(">")
            nodes = routes.between(f"g{a}", f"g{b}")
            # Between peers that cannot reach each other plain copies are staged, at other rates.
            if "xsock" not in text or "nvlink" in text:
                assert routes.rate(f"g{a}", f"g{b}") == row["plain"], (text, nodes)


def test_ways() -> None:
    routes = Routes(load_platforms()["dgx1v"])
    assert routes.way(0, 3) is Way.NVLINK and routes.way(0, 5) is Way.ACROSS
    assert Routes(load_platforms()["a10_l40s_x8"]).way(0, 1) is Way.SAME_SOCKET
    assert Routes(load_platforms()["dgx_a100"]).way(0, 1) is Way.NVSWITCH
    bare = load_platforms()["dgx1v"]
    tree = tuple(e for e in bare.edges if not e.source[0] == e.target[0] == "g")
    assert Routes(Platform(8, bare.sockets, tree)).way(0, 1) is Way.SAME_SWITCH


def test_gpus_that_the_driver_refuses_as_peers_are_planned_through_the_host() -> None:
    def chosen(allowed: str) -> topology.Topology:
        variables = {"GLAKE_DRIVER": "sim:a10_l40s_x8", "GLAKE_SIM_PCIE_PEERS": allowed}
        return topology.current(variables)

    free, none = chosen("socket"), chosen("none")
    assert free.refused == () and len(none.refused) == 28
    assert chosen("switch").refused == none.refused  # none of them shares a switch
    graph = graph_of(none)
    names = graph.edges()
    for a, b in none.refused:
        assert not graph.peers(a, b)
        assert any("m" in names[edge] for edge, _ in graph.route((a, 0), (b, 0)))
    assert graph_of(free).peers(0, 1)
    plans = [
        str(transfer.explain(dst="cuda:1", src="cuda:0", nbytes=64 << 20, platform=each))
        for each in (free, none)
    ]
    assert plans[0] != plans[1]
    with pytest.raises(InvalidDevice, match=r"no pair of GPUs \(7, 8\)"):
        topology.Topology("x", none.platform, "test", (), ((7, 8),))


def test_gpus_under_one_switch_stay_peers(tmp_path: Path) -> None:
    links = [("m0", "s0"), ("s0", "u0"), ("u0", "g0"), ("u0", "g1"), ("s0", "g2")]
    edges = [[*each, 12] for a, b in links for each in ((a, b), (b, a))]
    content = {"box": {"gpus": 3, "sockets": [[0, 1, 2]], "edges": edges}}
    path = written(content, tmp_path / "box.json")
    given = {"GLAKE_DRIVER": "sim:box", "GLAKE_SIM_PLATFORMS": str(path)}
    found = topology.current({**given, "GLAKE_SIM_PCIE_PEERS": "switch"})
    assert found.refused == ((0, 2), (1, 2))
