"""`glake topo`, run in this process, and once in a process of its own."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import own_python
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from glake.cli import main
from glake.platform_file import load_platforms
from glake.transfer import topology
from glake.transfer.topology import dot
from glake.transfer.topology.tables import show

PROGRAMS = Path(__file__).parent / "programs"
PRESETS = list(load_platforms())


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GLAKE_"):
            monkeypatch.delenv(name)


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, ["topo", *arguments], env=variables)


def refused(said: str, *arguments: str, **variables: str) -> None:
    done = run(*arguments, **variables)
    assert done.exit_code == 2, done.output
    assert re.search(said, done.stderr), done.stderr
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("name", PRESETS)
def test_json_reads_back_as_the_same_graph(name: str, tmp_path: Path) -> None:
    text = run("--preset", name, "--json").stdout
    (tmp_path / "box.json").write_text(text)
    assert topology.from_file(tmp_path / "box.json").platform == load_platforms()[name]
    again = run("--file", str(tmp_path / "box.json"), "--name", name, "--json")
    assert again.exit_code == 0 and again.stdout == text
    # The simulator takes the same file.
    sim = {"GLAKE_DRIVER": f"sim:{name}", "GLAKE_SIM_PLATFORMS": str(tmp_path / "box.json")}
    assert run("--json", **sim).stdout == text


def test_the_simulator_loads_what_json_prints(tmp_path: Path) -> None:
    (tmp_path / "box.json").write_text(run("--preset", "gb200_tray", "--json").stdout)
    variables = {
        "GLAKE_DRIVER": "sim:gb200_tray",
        "GLAKE_SIM_PLATFORMS": str(tmp_path / "box.json"),
    }
    assert own_python.output(PROGRAMS / "devices.py", **variables) == "4\n"


def test_estimates_are_called_so() -> None:
    platform = replace(load_platforms()["dgx1v"], assumed=("estimated rate: all: a guess",))
    console = Console(width=120, file=io.StringIO())
    show(topology.Topology("x", platform, "test"), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Rates: estimates, not measured; `glake topo --probe`" in text


def test_text() -> None:
    shown = run("--preset", "dgx1v").stdout
    assert "dgx1v: 8 GPUs, 2 sockets; preset dgx1v" in shown
    assert re.search(r"│ cuda:0 │ +│ NVLink │ NVLink │ NVLink │ NVLink │ across ", shown)
    assert re.search(r"│ +│ +│ 24 +│ 24 +│ 48 +│ 48 +│ 12.3 ", shown)
    assert "u3 under cpu:1/pcie: 12.3 towards cuda:6 cuda:7, 13 back; together, not each" in shown
    assert "the uplink of a PCIe switch is as fast as one GPU's link" in shown
    assert "Limits over several links: none" in shown
    shown = run("--preset", "hgx_h100_h200").stdout
    assert "cuda:0>N + N>cuda:0 <= 775; 7 more of the kind" in shown
    assert "cpu:0>cpu:0/pcie + 0.9667 x cpu:0/pcie>cpu:0 <= 221; 1 more of the kind" in shown
    assert "Shared uplinks: none" in shown


def test_a_narrow_terminal_loses_nothing() -> None:
    console = Console(width=80, file=io.StringIO())
    show(topology.from_preset("dgx_a100"), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "NVS: NVSwitch" in text and "…" not in text
    assert text.count("NVS ") == 56 and text.count("20.35") == 16 + 4
    assert max(map(len, text.splitlines()[:30])) <= 80


def test_list() -> None:
    shown = run("--list").stdout
    assert all(name in shown for name in PRESETS) and "NVSwitch" in shown
    assert json.loads(run("--list", "--json").stdout) == PRESETS


def test_the_driver_chooses() -> None:
    assert "simulated driver, platform gb200_tray" in run(GLAKE_DRIVER="sim:gb200_tray").stdout
    two = json.loads(run("--json", GLAKE_DRIVER="sim:dgx1v", GLAKE_SIM_DEVICES="2").stdout)
    assert two["dgx1v"]["gpus"] == 2


def test_a_machine_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glake.transfer.topology.sysfs.Sysfs.gpus", lambda self: [])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    refused(r"no GPU here \(NVML needs nvidia-ml-py, which is not installed.*--preset NAME")


def test_refusals(tmp_path: Path) -> None:
    refused("no platform 'dgx9' in .*: there are dgx1v", "--preset", "dgx9")
    refused("cannot be read: No such file", "--file", str(tmp_path / "no.json"))
    refused("give one of them", "--preset", "dgx1v", "--file", "x")
    refused("--name chooses", "--preset", "dgx1v", "--name", "x")
    refused("--list goes with", "--list", "--preset", "dgx1v")
    refused("--probe measures", "--probe", "--preset", "dgx1v")
    refused(
        r"ends in .png, .svg, .gv or .dot",
        "--preset",
        "dgx1v",
        "--picture",
        str(tmp_path / "a.gif"),
    )
    refused("GLAKE_SIM_DEVICES", GLAKE_DRIVER="sim", GLAKE_SIM_DEVICES="-1")
    gone = str(tmp_path / "none" / "a.png")
    refused(f"{gone} cannot be written: give", "--preset", "dgx1v", "--picture", gone)
    same = tmp_path / "box.svg"
    same.write_text(run("--preset", "dgx1v", "--json").stdout)
    refused("is the input", "--file", str(same), "--picture", str(same))
    assert json.loads(same.read_text())


def test_a_plan_of_a_copy(tmp_path: Path) -> None:
    whole = run("--preset", "dgx_a100", "--plan", "cpu", "cuda:0")
    assert whole.stdout.startswith("from cpu to cuda:0, 1 GiB on dgx_a100, host memory interleaved")
    assert re.search(r"over cpu:1>cuda:4>cuda:0 +23.8 GB/s", whole.stdout)
    near = ("--plan", "gpu3", "cpu", "--bytes", "64MiB", "--host", "local", "--json")
    (tmp_path / "box.json").write_text(run("--preset", "dgx1v", "--json").stdout)
    for chosen in (("--preset", "dgx1v"), ("--file", str(tmp_path / "box.json"))):
        row = json.loads(run(*chosen, *near).stdout)
        assert (row["src"], row["dst"], row["bytes"]) == ("cuda:3", "cpu", 64 << 20)
        assert row["host"] == "local" and row["paths"][0]["hops"][0][0] == "cuda:3"
    sim = run("--plan", "cpu:1", "cuda:1", GLAKE_DRIVER="sim:gb200_tray")
    assert "on gb200_tray, host memory of cpu:1" in sim.stdout
    plan = ("--preset", "dgx1v", "--plan", "cpu")
    refused("cuda:8: the platform has 8 GPUs", *plan, "cuda:8")
    refused("one end must be a GPU", *plan, "cpu:1")
    same = ("--preset", "dgx1v", "--plan", "cuda:0", "gpu0")
    refused("both ends are cuda:0, so that no link is crossed", *same)
    refused("--bytes 1XB: not a number of bytes, such as 4096", *plan, "gpu0", "--bytes", "1XB")
    refused("sizes are integers", *plan, "gpu0", "--bytes", "2TiB")
    refused("copy of --plan SRC DST", "--preset", "dgx1v", "--bytes", "4KiB")
    refused("--plan goes with", *plan, "gpu0", "--picture", "a.svg")


def test_a_probe_says_what_is_measured() -> None:
    """It runs in its own process, because it uses the driver. The simulator's links have the rates
    of the topology."""
    command = [sys.executable, "-m", "glake.cli", "topo", "--probe"]
    done = subprocess.run(
        command, env=os.environ | {"GLAKE_DRIVER": "sim:gb200_tray"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"Rates: measured by a probe on 20\d\d-\d\d-\d\d", done.stdout)
    assert "platform gb200_tray, probed" in done.stdout and "201" in done.stdout
    assert "nominal, as the platform gives them" in run("--preset", "gb200_tray").stdout


def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    text = run("--preset", "gb200_tray", "--json").stdout.replace("gb200_tray", "[red]x[/blue]")
    (tmp_path / "box.json").write_text(text)
    shown = run("--file", str(tmp_path / "box.json"))
    assert shown.exit_code == 0 and "[red]x[/blue]: 4 GPUs" in shown.stdout


@pytest.fixture
def no_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphviz seems not to be installed, so matplotlib draws."""
    monkeypatch.setattr(dot, "program", lambda: None)


@pytest.mark.usefixtures("no_graphviz")
@pytest.mark.parametrize("name", ["dgx1v", "gb200_tray"])
def test_picture(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("--preset", name, "--picture", str(tmp_path / "a.SVG"))
    assert done.exit_code == 0, done.stderr
    svg = (tmp_path / "a.SVG").read_text()
    platform = load_platforms()[name]
    for gpu in range(platform.gpus):
        assert f">cuda:{gpu}<" in svg
    for socket in range(2):
        assert f">cpu:{socket}<" in svg and f">cpu:{socket}/pcie<" in svg
    for rate in {edge.gb_per_s for edge in platform.edges if edge.target == "N"}:
        assert re.search(rf">[^<]*\b{rate:g}\b[^<]*<", svg), rate
    assert (">NVSwitch<" in svg) == (name == "gb200_tray")
    run("--preset", name, "--picture", str(tmp_path / "b.svg"))
    assert (tmp_path / "b.svg").read_text() == svg  # the same each time
    run("--preset", name, "--picture", str(tmp_path / "c.png"))
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.SVG", "b.svg", "c.png"]


def test_a_graph_for_graphviz(tmp_path: Path) -> None:
    """It has each node and link once. Graphviz itself reads it, where it is installed."""
    file = tmp_path / "a.gv"
    (tmp_path / "box.json").write_text(
        run("--preset", "gb200_tray", "--json").stdout.replace("gb200_tray", 'a \\"quoted\\" name')
    )
    done = run("--file", str(tmp_path / "box.json"), "--picture", str(file))
    assert done.exit_code == 0, done.output
    text = file.read_text()
    platform = load_platforms()["gb200_tray"]
    links = {frozenset((edge.source, edge.target)) for edge in platform.edges}
    assert text.count(" -- ") == len(links)
    assert text.startswith('graph "a \\"quoted\\" name" {')
    for label in ("cuda:3", "cpu:1", "cpu:1/pcie", "NVSwitch"):
        assert text.count(f'[label="{label}"') == 1
    up, down = platform.rate("m0", "s0"), platform.rate("s0", "m0")
    assert up != down and f'm0 -- s0 [label="{up:g} / {down:g}"' in text
    if (dot := shutil.which("dot")) is not None:
        drawn = subprocess.run([dot, "-Tsvg", str(file)], capture_output=True, text=True)
        assert drawn.returncode == 0 and ">NVSwitch<" in drawn.stdout, drawn.stderr
    refused("cannot be written", "--preset", "dgx1v", "--picture", str(tmp_path / "none" / "a.gv"))


@pytest.mark.parametrize("name", ["dgx1v", "gb200_tray"])
def test_graphviz_draws_where_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for `dot` shows that the graph goes in and that its output becomes the file."""
    monkeypatch.setenv("PATH", f"{PROGRAMS / 'graphviz'}:{os.environ['PATH']}")
    done = run("--preset", name, "--picture", str(tmp_path / "a.SVG"))
    assert done.exit_code == 0, done.output
    run("--preset", name, "--picture", str(tmp_path / "a.gv"))
    graph = (tmp_path / "a.gv").read_text()
    assert (tmp_path / "a.SVG").read_text() == "drawn by -Tsvg\n" + graph
    # Links among the GPUs of a mesh cannot be drawn in levels.
    assert ("layout=neato" in graph) == (name == "dgx1v")

    monkeypatch.setenv("DOT_FAILS", "1")
    refused("could not draw", "--preset", name, "--picture", str(tmp_path / "b.png"))
    refused("no fonts", "--preset", name, "--picture", str(tmp_path / "b.png"))
    assert not (tmp_path / "b.png").exists()


@pytest.mark.usefixtures("no_graphviz")
@pytest.mark.parametrize("suffix", ["svg", "png", "gv"])
def test_a_picture_that_cannot_be_written_is_named(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"a.{suffix}"
    words = ("topo", "--preset", "dgx1v", "--picture", str(file))
    done = own_python.run(PROGRAMS / "picture_on_full_disk.py", *words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("Error: ") and str(file) in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_graphviz")
def test_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("needs matplotlib", "--preset", "dgx1v", "--picture", str(tmp_path / "a.png"))


@pytest.mark.usefixtures("no_graphviz")
def test_picture_of_odd_platforms(tmp_path: Path) -> None:
    """One GPU, a socket without any, switches that lead nowhere, links one way only."""
    pytest.importorskip("matplotlib")
    edges = [["m0", "s0", 9], ["s0", "m0", 9], ["m1", "s1", 9], ["s1", "m1", 9], ["s0", "s1", 5]]
    edges += [["s1", "s0", 6], ["s1", "u0", 9], ["u0", "g0", 9], ["g0", "s1", 9], ["u0", "u1", 9]]
    edges += [["s0", "u7", 3], ["u7", "u8", 3], ["N", "g0", 4]]
    row = {"gpus": 1, "sockets": [[], [0]], "edges": edges}
    (tmp_path / "$odd$.json").write_text(json.dumps(row))
    picture = ("--picture", str(tmp_path / "odd.svg"))
    done = run("--file", str(tmp_path / "$odd$.json"), *picture)
    assert done.exit_code == 0, done.output
    assert "u8 under u7: 3 towards no GPU, 0 back" in done.stdout
    svg = (tmp_path / "odd.svg").read_text()
    assert ">cuda:0<" in svg and ">5 / 6<" in svg and ">switch 7<" not in svg


def test_the_matrix_says_what_its_names_stand_for() -> None:
    done = CliRunner().invoke(main, ["topo", "--preset", "dgx1v"])
    words = " ".join(done.output.split())
    assert "cpu:0 the memory of a CPU socket, cpu:0/pcie its PCIe root" in words
    assert not re.search(r"\bhost\d|\b[ms]\d", words)
