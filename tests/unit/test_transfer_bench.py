"""`glake bench transfer`: rates on machines of known rates, what it says, what it refuses."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from own_python import output

from glake import transfer
from glake.cli import main
from glake.errors import InvalidArgument, InvalidOption
from glake.platform_file import load_platforms, preset_file
from glake.platforms import file_text
from glake.transfer import baselines
from glake.transfer.bench import run as bench
from glake.transfer.bench import tables
from glake.transfer.bench.cases import cases
from glake.transfer.bench.goals import gains_from, missed
from glake.transfer.bench.machines import machines
from glake.transfer.bench.worlds import NEW, OLD

PROGRAM = Path(__file__).with_name("programs") / "copies_on_machine.py"

MIB = 1 << 20
KEYS = {"platform", "transfer", "host", "size", "bound", "achieved", "plain", "equal_split"}
RATES = ("achieved", "plain", "equal_split")
CRC_OF_50_MACHINES = 3183360106


def _both(edges: list[list[Any]]) -> list[list[Any]]:
    return edges + [[b, a, rate] for a, b, rate in edges]


# Three sockets, one without GPUs. Two GPUs share a switch, one has its own link, one pair NVLinks.
ODD = {
    "gpus": 3,
    "sockets": [[1], [], [0, 2]],
    "edges": _both([[f"m{s}", f"s{s}", 60] for s in range(3)])
    + _both([["s0", "s1", 15], ["s1", "s2", 15], ["s0", "s2", 15]])
    + _both([["s2", "u4", 20], ["u4", "g0", 18], ["u4", "g2", 18], ["s0", "g1", 22]])
    + _both([["g0", "g1", 40]]),
}
# One GPU: nothing to relay over, no pairs.
ALONE = {
    "per_copy_us": 0,
    "gpus": 1,
    "sockets": [[0]],
    "edges": _both([["m0", "s0", 90], ["s0", "g0", 30]]),
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GLAKE_")]:
        monkeypatch.delenv(name)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "transfer", *arguments])


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def named(*transfers: str) -> list[str]:
    """Options that measure these transfers alone."""
    return [part for transfer in transfers for part in ("--only", transfer)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two made-up platforms. One has a name that needs quoting."""
    path = tmp_path_factory.mktemp("bench") / "boxes.json"
    path.write_text(json.dumps({"_note": "made up", "odd [box]": ODD, "alone": ALONE}))
    return path


@pytest.fixture(scope="module")
def rows(files: Path) -> list[dict[str, Any]]:
    return rows_of("--platform", str(files), "--sizes", "64KiB,4MiB", "--sizes", "64MiB", "--pages")


@pytest.fixture(scope="module")
def preset_rows() -> list[dict[str, Any]]:
    return rows_of("--platform", "dgx_a100", "--sizes", "1000001,64MiB")


def every(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def only(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = every(rows, **wanted)
    return row


def test_one_row_of_each(rows: list[dict[str, Any]], preset_rows: list[dict[str, Any]]) -> None:
    for found in (rows, preset_rows):
        names = [(r["platform"], r["transfer"], r["host"], r["size"]) for r in found]
        assert len(set(names)) == len(names)
    transfers = {row["transfer"] for row in every(rows, platform="odd [box]")}
    assert transfers == {
        *("h2d", "d2h", "bidir", "h2d:pair", "h2d:pair:0,2", "all-h2d", "all-d2h"),
        *("p2p:0>1", "p2p:0>2", "p2p:1>2", "h2d:queue", "d2h:queue", "all-h2d:queue"),
    }
    assert {row["transfer"] for row in every(rows, platform="alone")} == {
        *("h2d", "d2h", "bidir", "h2d:queue", "d2h:queue")
    }
    assert {row["host"] for row in every(rows, transfer="d2h")} == {"local", "interleaved", "pages"}
    assert {row["size"] for row in preset_rows} == {1000001, 64 * MIB}
    assert {row["host"] for row in preset_rows} == {"local", "interleaved"}


def test_fields(rows: list[dict[str, Any]], preset_rows: list[dict[str, Any]], files: Path) -> None:
    platforms = {**load_platforms(), **load_platforms(str(files))}
    for row in rows + preset_rows:
        assert row.keys() >= KEYS | {"first", "paths", "refusals", "missed", "us", "relayed"}
        assert 0 < row["core_per_path"] < 3
        count = len(row.get("rates", [0]))
        queued = row["transfer"].endswith(":queue")
        if queued:
            assert "jain" not in row
            each_gpu = row["transfer"].startswith("all")
            count = 4 * platforms[row["platform"]].gpus if each_gpu else 8
        assert sum(path["bytes"] for path in row["paths"]) == count * row["size"], row
        for refusal in row["refusals"]:
            assert refusal["path"] and refusal["reason"]
        if not queued:
            assert ("jain" in row) == (count > 1)
        if "jain" in row:
            assert 1 / count <= row["jain"] <= 1 and row["fair_bound"] <= row["bound"] * 1.001
        for label in RATES:
            assert 0 < row[label] <= row["bound"] * 1.001, (label, row)
            time = count * row["size"] / row["us"][label] / 1e3
            assert row[label] == pytest.approx(time, rel=1e-3)


def test_relays_that_pay_only_beside_another_copy(tmp_path: Path) -> None:
    """The example of docs/topology.md: one PCIe link is worth 25 GB/s one way, 32.5 both ways."""
    text = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    (example,) = re.findall(r"```json\n(\{.*?\n\})\n```", text, re.DOTALL)
    path = tmp_path / "my_box.json"
    path.write_text(example)
    found = rows_of("--platform", str(path), "--sizes", "4MiB,256MiB", "--order", "held")
    assert not [row for row in found if row["missed"]]
    assert not any(row["relayed"] for row in every(found, transfer="h2d"))
    row = only(found, transfer="bidir", host="local", size=256 * MIB)
    assert row["achieved"] > 0.9 * row["bound"] > 1.3 * row["plain"]
    assert row["relayed"]


def test_the_bound_is_the_computed_one(
    rows: list[dict[str, Any]], preset_rows: list[dict[str, Any]], files: Path
) -> None:
    odd = load_platforms(str(files))["odd [box]"]
    for host in ("local", "interleaved", "pages"):
        row = only(rows, platform="odd [box]", transfer="d2h", host=host, size=4 * MIB)
        assert row["bound"] == pytest.approx(
            transfer.bound(odd, dst="cpu", src="cuda:0", host=host), 1e-3
        )
    row = only(rows, platform="odd [box]", transfer="p2p:0>2", size=4 * MIB)
    assert row["bound"] == pytest.approx(transfer.bound(odd, dst="cuda:2", src="cuda:0"), rel=1e-3)
    given = json.loads(preset_file().read_text())["dgx_a100"]["bounds"]
    for name, key in {
        "h2d": "h2d inter", "bidir": "bidir h2d+d2h", "h2d:pair": "two h2d same switch (0,1)",
        "h2d:pair:0,4": "two h2d other socket (0,4)", "all-d2h": "all d2h inter",
    }.items():  # fmt: skip
        found = only(preset_rows, transfer=name, host="interleaved", size=64 * MIB)
        assert found["bound"] == pytest.approx(given[key]["bound"], rel=5e-3), name


def test_a_plain_copy_takes_its_latency_its_call_and_its_bytes(rows: list[dict[str, Any]]) -> None:
    for platform, rate, latency in (("alone", 30, 0), ("odd [box]", 18, 8)):
        for size in (65536, 4 * MIB, 64 * MIB):
            row = only(rows, platform=platform, transfer="d2h", host="local", size=size)
            # The driver call takes 2.6 us by the cost table.
            time = latency + 2.6 + size / rate / 1e3
            assert row["us"]["plain"] == pytest.approx(time, rel=1e-3)
    # A third comes from each socket, two thirds over 15 GB/s links, wherever pages lie at first.
    for host in ("interleaved", "pages"):
        row = only(rows, platform="odd [box]", transfer="all-h2d", host=host, size=64 * MIB)
        copies = [("cpu", f"cuda:{gpu}") for gpu in range(3)]
        plain = baselines.plain(_graph(), copies, host=host)
        assert row["plain"] == pytest.approx(plain, rel=0.01)


def _graph() -> Any:
    from glake._C import CapacityGraph

    return CapacityGraph(json.dumps(ODD))


def test_equal_shares_come_near_their_computed_rate(preset_rows: list[dict[str, Any]]) -> None:
    for host in ("local", "interleaved"):
        row = only(preset_rows, transfer="h2d", host=host, size=64 * MIB)
        shares = baselines.equal_shares("dgx_a100", [("cpu", "cuda:0")], host=host)
        assert 0.85 * shares <= row["equal_split"] <= 1.001 * shares
    small = only(preset_rows, transfer="h2d", host="local", size=1000001)
    assert small["equal_split"] > small["plain"]


def test_glake_gains_where_there_is_a_gain(preset_rows: list[dict[str, Any]]) -> None:
    row = only(preset_rows, transfer="h2d", host="interleaved", size=64 * MIB)
    assert row["relayed"] and row["gain"] and row["achieved"] > 3 * row["plain"]
    assert {path["path"] for path in row["paths"]} >= {"cpu:0>cuda:0"} and len(row["paths"]) > 3
    small = only(preset_rows, transfer="h2d", host="local", size=1000001)
    assert not small["relayed"] and small["paths"][0]["plain"]
    assert small["us"]["achieved"] <= small["us"]["plain"] + 2
    assert any("done sooner" in refusal["reason"] for refusal in small["refusals"])


def test_the_same_each_time() -> None:
    """Threads that enqueue side by side have no order, so this can hold for held streams only.
    There the threads of several copies in one stream have none either.
    """
    first, again = (
        rows_of(
            "--platform", "dgx_a100", "--sizes", "64MiB", "--order", "held",
            *named("h2d", "d2h:queue", "bidir", "all-h2d", "p2p*"),
        )
        for _ in range(2)
    )  # fmt: skip
    queues = [row for row in first if row["transfer"].endswith(":queue")]
    assert queues
    for row, other in zip(first, again, strict=True):
        if row in queues:
            assert other["achieved"] == pytest.approx(row["achieved"], rel=0.02)
        else:
            assert row == other


def rates_by_call_lock(platform: str, transfer: str, size: int) -> dict[str, float]:
    rates = {}
    for lock in bench.CALL_LOCKS:
        rows = bench.measure(
            bench.platforms_of(platform), [size], call_lock=lock, transfers=[transfer]
        )
        assert {row["call_lock"] for row in rows} == {lock}
        assert all(row["achieved"] >= 0.98 * row["plain"] for row in rows)
        rates[lock] = rows[-1]["achieved"]
    return rates


def test_calls_into_one_context_wait_for_each_other() -> None:
    """On a mesh GPU 2 writes the first hop of each path out of it, so its context gets calls for
    all."""
    rates = rates_by_call_lock("dgx1v", "p2p:2>3", 16 * MIB)
    assert 0.7 * rates["none"] < rates["context"] < 0.97 * rates["none"]


def test_relays_that_read_call_into_contexts_of_their_own() -> None:
    rates = rates_by_call_lock("hgx_h100_h200", "d2h", 64 * MIB)
    assert rates["context"] > 0.99 * rates["none"] and rates["context"] > 280


def test_polled_completion_takes_time_and_keeps_the_gain() -> None:
    platforms = bench.platforms_of("dgx_a100")
    some = ["h2d", "d2h", "h2d:pair*", "all-d2h", "d2h:queue", "p2p*"]
    woken = bench.measure(platforms, [64 * MIB], completion="instant", order="held", transfers=some)
    polled = bench.measure(platforms, [64 * MIB], order="held", transfers=some)
    assert {row["completion"] for row in woken} == {"instant"}
    assert {row["completion"] for row in polled} == {"polled"}
    for before, after in zip(woken, polled, strict=True):
        assert after["achieved"] >= 0.98 * after["plain"], (after["transfer"], after["host"])
        alone = not before["transfer"].startswith("all") and ":queue" not in before["transfer"]
        if after["relayed"] and alone:
            assert after["us"]["achieved"] >= before["us"]["achieved"]
    assert sum(row["us"]["achieved"] for row in polled) > sum(
        row["us"]["achieved"] for row in woken
    )


def test_copies_to_all_gpus_learn_that_they_come_together() -> None:
    """So do those that one call begins, the first time."""
    found = bench.measure(
        bench.platforms_of("hgx_h100_h200"),
        [16 * MIB],
        completion="polled",
        transfers=["h2d", "all-h2d"],
    )
    (row,) = every(found, transfer="all-h2d", host="local")
    assert row["first"] < 0.9 * row["plain"] and row["achieved"] >= 0.98 * row["plain"]
    assert min(row["first_batch"], row["batch"]) >= 0.98 * row["plain"]
    assert not row["relayed"] and row["core_per_path"] < 0.05
    (lone,) = every(found, transfer="h2d", host="local")
    assert lone["relayed"] and lone["achieved"] > 2 * lone["plain"]
    assert lone["first"] == pytest.approx(lone["achieved"], rel=0.05)


def test_a_made_up_machine_is_the_same_for_ever() -> None:
    made = machines(50)
    assert list(made)[:2] == ["made-0", "made-1"] and machines(1, 7) == {"made-7": made["made-7"]}
    assert {platform.gpus for platform in made.values()} >= {2, 4, 8, 16}
    assert {len(platform.sockets) for platform in made.values()} == {1, 2, 4}
    text = file_text(made).encode()
    assert zlib.crc32(text) == CRC_OF_50_MACHINES  # else earlier figures do not compare


@pytest.mark.parametrize("given", ["made:0", "made:1001", "made:x", "made:"])
def test_a_wrong_number_of_machines_is_refused(given: str) -> None:
    with pytest.raises(InvalidOption, match="of 1 to 1000 made-up machines"):
        bench.platforms_of(given)


def test_an_unknown_completion_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="context, none"):
        bench.measure(bench.platforms_of("dgx_a100"), [64 * MIB], call_lock="gpu")
    with pytest.raises(InvalidArgument, match="polled, instant"):
        bench.measure(bench.platforms_of("dgx_a100"), [64 * MIB], completion="asked")


@pytest.mark.parametrize("ignored", [("--order", "held"), ("--completion", "polled")])
def test_options_that_both_worlds_would_ignore_are_refused(ignored: tuple[str, str]) -> None:
    done = run("--platform", "dgx1v", "--worlds", *ignored)
    assert done.exit_code == 2 and "leave out --completion and --order" in done.stderr


def test_every_kind_of_route_is_there() -> None:
    given = json.loads(preset_file().read_text())
    for name, platform in load_platforms().items():
        transfers = [case.transfer for case in cases(platform)]
        for key in given[name]["bounds"]:
            if pair := re.match(r"p2p (\d+>\d+)", key):
                assert f"p2p:{pair[1]}" in transfers, (name, key)
            if pair := re.match(r"two h2d .*\((\d+,\d+)\)", key):
                first = pair[1] == "0,1"
                assert ("h2d:pair" if first else f"h2d:pair:{pair[1]}") in transfers, (name, key)


def test_table_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, plot = tmp_path / "boxes.json", tmp_path / "a.svg"
    file.write_text(json.dumps({"odd [box]": ALONE}))
    done = run("--platform", str(file), "--sizes", "1MiB", "--plot", str(plot))
    assert done.exit_code == 0, done.output
    assert "odd [box]" in done.stdout and f"Drawn into {plot}" in done.stdout
    assert re.search(r"bidir +local +1MiB +[\d.]+ +60.0", done.stdout)
    assert "odd [box]: h2d, interleaved" in plot.read_text()


def test_nothing_is_written_unasked(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    done = run("--platform", str(files), "--sizes", "1MiB")
    assert done.exit_code == 0 and "--plot FILE draws a picture" in done.stdout
    assert list(folder.iterdir()) == []


def test_without_matplotlib_or_the_solver(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    table = run("--platform", str(files), "--sizes", "1MiB")
    assert table.exit_code == 0 and "--plot FILE draws a picture" in table.stdout
    asked = run("--platform", str(files), "--plot", "a.png")
    assert asked.exit_code == 2 and "needs matplotlib" in asked.stderr
    monkeypatch.setitem(sys.modules, "highspy", None)
    absent = run("--platform", str(files), "--json")
    assert absent.exit_code == 2 and 'pip install "glake[transfer]"' in absent.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--platform", "dgx9"], "no platform 'dgx9'.*dgx1v, dgx_a100"),
        (["--platform", "no/such.json"], "no/such.json cannot be read: No such file"),
        (["--platform", "BROKEN"], "line 1 column 2"),
        (["--platform", "MALFORMED"], r"box: edges\[0\] m0>s0: -1 is not above 0"),
        (["--platform", "SLOW"], "box: link m0>s0 has 1e-09 GB/s: below 0.001 GB/s"),
        (["--platform", "dgx1v", "--sizes", "4 MB"], "size '4 MB': not a number of bytes"),
        (["--platform", "dgx1v", "--sizes", "0"], "size '0': not above 0"),
        (["--platform", "dgx1v", "--sizes", "1MiB,"], "size ''"),
        (["--platform", "dgx1v", "--sizes", "1TiB"], "more than 16GiB"),
        (["--platform", "dgx1v", "--only", "up*"], r"like 'up\*': there are h2d, d2h, "),
        (["--platform", "dgx1v", "--plot", "a.gif"], "ends in .png or .svg"),
        (["--platform", "dgx1v", "--plot", "no/such/a.png"], "no/such"),
    ],
)
def test_refusals(arguments: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "BROKEN").write_text("{")
    bad = copy.deepcopy(ODD)
    bad["edges"][0][2] = -1  # type: ignore[index]
    (tmp_path / "MALFORMED").write_text(json.dumps({"box": bad}))
    slow = copy.deepcopy(ODD)
    slow["edges"][0][2] = 1e-9  # type: ignore[index]
    (tmp_path / "SLOW").write_text(json.dumps({"box": slow}))
    given = [
        str(tmp_path / word) if word.isalpha() and word.isupper() else word for word in arguments
    ]
    done = run(*given)
    assert done.exit_code == 2, done.output
    assert re.search(says, done.stderr), done.stderr
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_child_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    box = {"box": load_platforms()["gb200_tray"]}
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(bench.BenchFailed, match="platform box .* its process ended with 1"):
        bench.measure(box, [MIB])
    monkeypatch.undo()
    monkeypatch.setattr(bench, "_SILENT_S", 0.01)
    with pytest.raises(bench.BenchFailed, match="said nothing"):
        bench.measure(box, [MIB])


def _row(**changed: Any) -> dict[str, Any]:
    row = {
        "transfer": "h2d", "size": 256 * MIB, "gain": True, "bound": 100.0, "achieved": 93.0,
        "fair_bound": 101.0, "plain": 25.0, "equal_split": 80.0,
        "core_per_path": 0.3, "order": "enqueued", "us": {"achieved": 50.0, "plain": 50.0},
    }  # fmt: skip
    return row | changed


@pytest.mark.parametrize(
    ("changed", "below"),
    [
        ({}, []),
        ({"achieved": 91.0}, ["bound"]),
        ({"achieved": 94.0, "size": 1024 * MIB}, ["bound"]),
        ({"achieved": 91.0, "jain": 0.94, "transfer": "h2d:pair"}, ["bound", "jain"]),
        ({"achieved": 84.0, "jain": 1.0, "transfer": "bidir", "fair_bound": 91.0}, []),
        ({"achieved": 83.0, "jain": 0.9, "transfer": "bidir", "fair_bound": 91.0}, ["fair_bound"]),
        ({"achieved": 87.0, "gain": False}, []),
        ({"achieved": 24.0, "gain": False, "equal_split": 25.0}, ["plain"]),
        ({"achieved": 75.0, "size": 64 * MIB}, ["equal_split"]),
        ({"core_per_path": 0.31}, ["core_per_path"]),
        ({"core_per_path": 0.31, "order": "held"}, []),
        ({"core_per_path": 0.31, "size": 16 * MIB}, []),  # calls weigh more in a short copy
        ({"achieved": 25.0, "size": 4 * MIB}, ["plain"]),  # no gain yet
        ({"achieved": 25.0, "size": MIB}, []),
        ({"size": 4096, "us": {"achieved": 13.0, "plain": 10.5}}, ["time"]),
    ],
)
def test_goals(changed: dict[str, Any], below: list[str]) -> None:
    found = missed(_row(**changed), load_platforms()["dgx_a100"])
    assert [each["of"] for each in found] == below


def test_goals_where_a_chunk_is_as_short_as_a_start() -> None:
    platform = load_platforms()["gb200_tray"]
    assert not missed(_row(achieved=81.0), platform)
    assert [each["goal"] for each in missed(_row(achieved=79.0, equal_split=70.0), platform)] == [
        0.8
    ]


def test_goals_between_gpus_follow_their_own_links() -> None:
    row = _row(achieved=81.0, equal_split=70.0)
    platforms = load_platforms()
    assert not missed(row | {"transfer": "p2p:0>1"}, platforms["hgx_b300"])
    assert [each["of"] for each in missed(row, platforms["hgx_b300"])] == ["bound"]
    assert [each["of"] for each in missed(row | {"transfer": "p2p:0>1"}, platforms["dgx1v"])] == [
        "bound"
    ]


def test_both_worlds_in_one_table() -> None:
    some = named("h2d", "d2h:queue")
    done = run("--platform", "made:2", "--worlds", "--sizes", "64MiB", *some)
    assert done.exit_code == 0, done.output
    assert re.search(r"made-0 +\d+/\d ", done.stdout) and re.search(r"made-1 +\d+/\d ", done.stdout)
    assert "< plain" in done.stdout and "old: reach" in done.stdout
    rows = rows_of("--platform", "made:1", "--worlds", "--sizes", "64MiB", *some)
    assert {row["transfer"] for row in rows} == {"h2d", "d2h:queue"}
    assert {(row["completion"], row["order"]) for row in rows} == {NEW, OLD}
    names = [(row["transfer"], row["host"]) for row in rows]
    assert names[: len(names) // 2] == names[len(names) // 2 :]


def _made(number: int, sizes: str, tmp_path: Path, *transfers: str) -> list[dict[str, Any]]:
    file = tmp_path / "platform.json"
    file.write_text(file_text(machines(1, first=number)))
    some = ("--platform", str(file), *named(*transfers))
    return rows_of(*some, "--sizes", sizes, "--completion", "polled")


def _loops(number: int, sizes: str, tmp_path: Path) -> list[dict[str, Any]]:
    return _made(number, sizes, tmp_path, "all-h2d", "all-d2h")


def test_plain_copies_that_are_done_hold_up_nothing(tmp_path: Path) -> None:
    """On this machine some copies of a loop are plain. They end a little before their planned rate
    says. The next loop must not be planned around them: it was 0.74 of the bound then."""
    for row in _loops(6, "16MiB", tmp_path):
        assert row["achieved"] >= 0.9 * min(row["bound"], row["fair_bound"])


def test_a_forecast_that_is_wrong_about_plain_copies_is_given_up(tmp_path: Path) -> None:
    """Here the forecast plans a loop so that some of its copies are plain. That is slower than to
    plan each copy alone (0.75 of the bound), and slower than plain copies alone (0.81)."""
    for row in _loops(36, "64MiB", tmp_path):
        assert row["achieved"] >= 0.98 * row["plain"]
        if row["host"] == "local":
            assert row["achieved"] >= 0.85 * min(row["bound"], row["fair_bound"])


def test_the_table_counts_what_reaches_its_goal() -> None:
    def row(size: int, **given: Any) -> dict[str, Any]:
        return {"size": size, "gain": True, "missed": [], **given}

    late = [{"of": "fair_bound", "is": 0.91, "goal": 0.92}, {"of": "plain", "is": 1, "goal": 2}]
    rows = [row(256 * MIB), row(256 * MIB, missed=late), row(256 * MIB, gain=False)]
    rows += [row(64 * MIB), row(1 << 30, missed=late[1:])]
    assert tables._reached(rows).endswith(
        "bound: 1 of 2 at 256MiB, the worst at 0.91 of it; 1 of 1 at 1GiB."
    )
    assert tables._reached([row(64 * MIB)]) == ""


@pytest.mark.parametrize(("number", "transfer"), [(6, "p2p:0>2"), (38, "p2p:0>3")])
def test_paths_that_share_links_carry_what_was_planned(
    number: int, transfer: str, tmp_path: Path
) -> None:
    """Copies share a link equally. With two copies at once on each path these reached 0.90 and 0.87
    of their bounds."""
    (row,) = _made(number, "256MiB", tmp_path, transfer)
    assert row["achieved"] >= 0.94 * row["bound"]


def test_a_copy_over_three_relays_passes_the_bound_of_two(tmp_path: Path) -> None:
    (row,) = _made(49, "256MiB", tmp_path, "p2p:0>1")
    assert row["achieved"] >= 1.2 * row["bound"]
    assert any(path["path"].count(">") == 4 for path in row["paths"])


def test_all_bytes_arrive_however_many_copies_flow_at_once(tmp_path: Path) -> None:
    file = tmp_path / "platform.json"
    file.write_text(file_text(machines(1, first=38)))
    machine = {"GLAKE_DRIVER": "sim:made-38", "GLAKE_SIM_PLATFORMS": str(file)}
    size = 96 << 20  # over a millisecond: a shorter copy has two at once on each hop
    chunks = json.loads(output(PROGRAM, "0", "3", str(size), "4", **machine))
    assert set(chunks) >= {"cuda:0>cuda:1>cuda:3", "cuda:0>cuda:2>cuda:3", "cuda:0>cuda:5>cuda:3"}
    assert min(chunks.values()) > 3


def test_a_stream_that_threads_share_takes_over_other_pipelines(tmp_path: Path) -> None:
    """Each copy has another size, and so other streams and buffers than the one before it."""
    file = tmp_path / "platform.json"
    file.write_text(file_text(machines(1, first=38)))
    machine = {"GLAKE_DRIVER": "sim:made-38", "GLAKE_SIM_PLATFORMS": str(file)}
    program = PROGRAM.with_name("threads_share_a_stream.py")
    assert output(program, "0", "3", "3", "20", **machine) == "all arrived []\n"


def test_a_queue_on_fast_links(tmp_path: Path) -> None:
    """A path here carries more than was planned, because copies share a link equally. Another path
    is behind for it, and its link was taken for a slow one: 0.65 of the bound the first time. The
    calls for a copy take half as long as the copy. They hold up no copy behind it in its stream,
    but were weighed as if they did. Then all of them became plain copies: 0.45 of the bound."""
    (row,) = every(_made(36, "256MiB", tmp_path, "h2d:queue"), host="interleaved")
    assert row["relayed"] and row["achieved"] > 0.75 * row["bound"]
    assert row["first"] > 0.75 * row["bound"]


def test_memory_on_two_sockets_of_which_one_is_far(tmp_path: Path) -> None:
    """The far socket's memory has a relay and a path through the near socket. If both ended
    together, the near socket's memory would wait for its link: 0.77 of the bound."""
    (row,) = every(_made(19, "256MiB", tmp_path, "d2h"), host="interleaved")
    assert row["achieved"] > 0.9 * row["bound"] and row["first"] > 0.85 * row["bound"]


def test_where_gains_begin() -> None:
    sizes = {name: gains_from(each) for name, each in load_platforms().items()}
    assert sizes["dgx1v"] == sizes["hgx_b300"] == sizes["a40x8_bridged"] == 4 * MIB
    assert sizes["gb200_tray"] == 8 * MIB and sizes["a10_l40s_x8"] == float("inf")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_neither_files_nor_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "glake", "bench", "transfer", "--platform", "dgx_a100"]
    done = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    children = Path(f"/proc/{done.pid}/task")
    end = time.monotonic() + 60
    while not (found := [pid for each in children.glob("*/children") for pid in _pids(each)]):
        assert time.monotonic() < end and done.poll() is None
        time.sleep(0.05)
    time.sleep(1)  # measuring
    done.send_signal(number)
    assert done.wait(30) != 0
    assert list(tmp_path.iterdir()) == []
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        assert time.monotonic() < end
        time.sleep(0.05)


def _pids(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # the thread has ended
        return []
