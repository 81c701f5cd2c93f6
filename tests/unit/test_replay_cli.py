"""`glake replay`: options, exit codes, JSON and the picture."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glake.trace import report
from glake.trace.cli import replay
from glake.trace.replay import load_trace
from glake.trace.replay import replay as run_replay

MIB = 1 << 20
TRACES = Path(__file__).resolve().parents[1] / "traces"
FIXED = str(TRACES / "gpt-fixed.trace.gz")
VARYING = str(TRACES / "gpt-varying.trace.gz")
KEYS = [
    "trace",
    "policy",
    "capacity_bytes",
    "peak_live_bytes",
    "peak_physical_bytes",
    "utilisation",
    "time_avg_utilisation",
    "min_capacity_bytes",
    "driver_calls",
    "driver_calls_per_step",
    "driver_us_per_step",
    "growth_us_per_step",
    "event_calls_per_step",
    "event_us_per_step",
    "stream_waits_per_step",
    "host_ns_alloc",
    "host_ns_free",
    "oom",
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(replay, list(arguments))


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.trace"
    path.write_text(f"s 0\na 0 {20 * MIB} 0\nf 0\ns 1\na 1 {10 * MIB} 1\n")
    return str(path)


def test_json_has_the_promised_keys_and_nothing_else_is_printed():
    ran = run(FIXED, VARYING, "--policy", "native,expandable", "--json")
    assert ran.exit_code == 0
    results = json.loads(ran.stdout)
    assert [(each["trace"], each["policy"]) for each in results] == [
        (FIXED, "native"),
        (FIXED, "expandable"),
        (VARYING, "native"),
        (VARYING, "expandable"),
    ]
    for each in results:
        assert list(each)[: len(KEYS)] == KEYS
        assert each["capacity_bytes"] is None and each["min_capacity_bytes"] is None
        assert each["complete_after"] == 512
        assert each["peak_live_bytes"] == each["trace_peak_live_bytes"]


@pytest.mark.parametrize(
    ("text", "capacity"),
    [
        ("41943040", 40 * MIB),
        ("40MiB", 40 * MIB),
        ("0.5 GiB", 512 * MIB),
        ("1.5x", 30 * MIB),
        ("unlimited", None),
    ],
)
def test_capacities(tiny, text, capacity):
    ran = run(tiny, "--policy", "native", "--capacity", text, "--json")
    assert json.loads(ran.stdout)[0]["capacity_bytes"] == capacity


def test_out_of_memory_is_a_result(tiny):
    ran = run(tiny, "--policy", "native", "--capacity", "10MiB", "--json")
    assert ran.exit_code == 0
    oom = json.loads(ran.stdout)[0]["oom"]
    assert (oom["event"], oom["step"]) == (1, 0)
    table = run(tiny, "--policy", "native", "--capacity", "10MiB")
    assert table.exit_code == 0
    assert "native: step 0, event 1: out of memory" in table.stdout.replace("\n", " ")


def test_gmlake_with_a_size_and_the_bound(tiny):
    ran = run(tiny, "--policy", "gmlake:64MiB,bound", "--json")
    assert ran.exit_code == 0
    results = json.loads(ran.stdout)
    assert [each["policy"] for each in results] == ["gmlake:64MiB", "bound"]
    assert [each["peak_physical_bytes"] for each in results] == [30 * MIB, 20 * MIB]
    assert [each["peak_event"] for each in results] == [4, 1]
    assert "layout" not in results[0]


def test_min_capacity_and_never(tiny):
    ran = run(
        tiny, "--policy", "native", "--find-min-capacity", "--complete-after", "never", "--json"
    )
    result = json.loads(ran.stdout)[0]
    assert result["complete_after"] == -1
    # The first segment is given back for the second: 20 MiB, found to 0.1 %.
    assert 20 * MIB <= result["min_capacity_bytes"] <= 20 * MIB * 1.001


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["/nonexistent/job.trace"],
        [FIXED, "--policy", "best"],
        [FIXED, "--policy", ","],
        [FIXED, "--policy", "native,gmlake:64MB"],
        [FIXED, "--capacity", "-1"],
        [FIXED, "--capacity", "0"],
        [FIXED, "--capacity", "0x"],
        [FIXED, "--capacity", "80GB"],
        [FIXED, "--capacity", "9TiB"],
        [FIXED, "--capacity", "99999999TiB"],
        [FIXED, "--complete-after", "-1"],
        [FIXED, "--complete-after", "soon"],
        [FIXED, "--complete-after", "9999999999999999999"],
    ],
)
def test_bad_input_exits_with_two_and_a_reason(arguments):
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert "Error" in ran.stderr


def test_a_trace_of_steps_alone_is_refused_like_an_empty_one(tmp_path):
    path, page, picture = (tmp_path / name for name in ("n.trace", "n.html", "n.png"))
    path.write_text("s 1\ns 2\n")
    ran = run(str(path), "--policy", "native", "--html", str(page), "--plot", str(picture))
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ran.stderr == f"Error: {path}:3: op: the trace ends without an allocation\n"
    assert not page.exists() and not picture.exists()


def test_a_bad_trace_exits_with_two_and_the_line(tmp_path):
    bad = tmp_path / "bad.trace"
    bad.write_text("a 0 512 0\nf 1\n")
    ran = run(str(bad), "--policy", "native", "--json")
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert f"{bad}:2: id: 1 is not a live block" in ran.stderr


def test_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    ran = run(
        VARYING, "--policy", "native,expandable", "--capacity", "1.05x", "--plot", str(picture)
    )
    assert ran.exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused = run(FIXED, "--policy", "native", "--plot", str(tmp_path / "out.nonsense"))
    assert refused.exit_code == 2


def test_a_file_that_cannot_be_written_loses_no_result(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(report, "plot", full)
    for option, path in (("--html", "/dev/full"), ("--plot", str(tmp_path / "out.png"))):
        failed = run(FIXED, "--policy", "native", "--json", option, path)
        assert failed.exit_code == 2 and f"{option}: " in failed.stderr
        assert json.loads(failed.stdout)[0]["policy"] == "native"


@pytest.mark.parametrize(("share", "steps"), [(0.01, False), (0.5, True), (2.0, True)])
def test_a_plot_shows_the_whole_job_and_no_empty_panel(share, steps):
    pytest.importorskip("matplotlib")
    trace = load_trace(VARYING)
    capacity = int(trace.peak_live_bytes * share)
    names = ("glake", "native", "expandable")
    results = [run_replay(trace, name, capacity=capacity) for name in names]
    panels = report._figure(results, [trace]).axes
    assert len(panels) == (2 if steps else 1)  # out of memory in set-up: no step to show
    live = panels[0].collections[0].get_paths()[0].get_extents()
    assert live.x0 == 0 and live.x1 > 0.99 * trace.events
    unit = 1 << 30
    assert live.y1 == pytest.approx(trace.peak_live_bytes / unit)
    assert panels[0].get_ylabel() == "GiB" and panels[0].get_ylim()[1] > live.y1
    crosses = [each for each in panels[0].get_lines() if each.get_marker() == "X"][:-1]
    assert len(crosses) == (0 if share > 1 else 3)
    for each, result in zip(results, crosses, strict=False):
        assert result.get_xdata()[0] == each.oom.event


def test_crosses_at_one_place_stand_apart():
    trace = load_trace(VARYING)
    names = ("glake", "compact", "native", "expandable")
    results = [run_replay(trace, name, capacity=1 << 30) for name in names]
    placed = report._crosses(results, trace.events, apart=100 << 20)
    assert sorted(number for _, _, number in placed) == [0, 1, 2, 3]
    heights = sorted(held for _, held, _ in placed)
    assert all(b - a >= 100 << 20 for a, b in zip(heights, heights[1:], strict=False))
    for event, held, number in placed:
        assert results[number].oom.event == event
        assert held >= results[number].timeline.physical[-1]


def test_small_jobs_have_small_units(tiny):
    ran = run(tiny, "--policy", "native", "--find-min-capacity")
    words = " ".join(ran.stdout.split())
    assert "peak live 20.00 MiB, capacity unlimited" in words
    assert "30.00 MiB" in words and "GiB" not in words and "20.02 MiB (1.001x)" in words


def test_costs_name_tables(tiny):
    words = " ".join(run(tiny, "--policy", "native").stdout.split())
    assert "published" in words and "kvcached" in words
    one = json.loads(run(tiny, "--policy", "native", "--json", "--costs", "a100-kvcached").stdout)
    assert one[0]["costs"] == "a100-kvcached" and list(one[0]["by_costs"]) == ["a100-kvcached"]
    for wrong in ("tpu", "published,tpu", ","):
        refused = run(tiny, "--costs", wrong)
        assert refused.exit_code == 2 and "published" in refused.output


def test_outputs_never_replace_an_input(tmp_path):
    trace = tmp_path / "own.png"
    trace.write_text("a 1 512 0\n")
    (tmp_path / "link.html").symlink_to(trace)
    for option, path in (("--plot", trace), ("--html", tmp_path / "link.html")):
        result = run(str(trace), "--policy", "bound", option, str(path))
        assert result.exit_code == 2 and "is an input" in result.output
    both = str(tmp_path / "x.html")
    result = run(str(trace), "--plot", both, "--html", both)
    assert result.exit_code == 2 and "too" in result.output
    result = run(str(trace), "--plot", str(tmp_path / "none" / "x.png"))
    assert result.exit_code == 2 and "no such folder" in result.output
    assert trace.read_text() == "a 1 512 0\n"


POLICIES = "glake,compact,native,expandable,gmlake,bound"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(1 << 44, "16.00 TiB"), (1 << 52, "4.00 PiB"), ((1 << 63) - 1, "8.00 EiB")],
)
def test_a_block_no_device_holds_is_out_of_memory_under_every_policy(tmp_path, tiny, size, shown):
    absurd = tmp_path / "absurd.trace"
    absurd.write_text(f"a 1 512 0\ns 0\na 2 {size - 512} 0\n")
    for capacity, names in (
        ("unlimited", POLICIES),
        ("80GiB", POLICIES),
        ("1.05x", "native,bound"),
    ):
        ran = run(tiny, str(absurd), "--policy", names, "--capacity", capacity, "--json")
        assert ran.exit_code == 0, ran.output
        results = json.loads(ran.stdout)
        for each in results[: len(results) // 2]:
            assert each["oom"] is None
        for each in results[len(results) // 2 :]:
            assert (each["oom"]["event"], each["oom"]["step"]) == (2, 0), each["policy"]
            assert each["oom"]["message"].startswith("out of memory")
            if each["policy"] != "bound":  # its message tells all live bytes
                assert f"{shown} asked for" in each["oom"]["message"]
            assert each["peak_physical_bytes"] <= 20 * MIB


def test_without_limit_no_policy_holds_more_than_another(tmp_path):
    """Every policy has 1 TiB. A larger device must be asked for."""
    path = tmp_path / "large.trace"
    path.write_text(f"a 1 {(1 << 40) - 40 * MIB} 0\na 2 {50 * MIB} 0\n")
    ran = run(str(path), "--policy", POLICIES, "--json")
    assert [each["oom"]["event"] for each in json.loads(ran.stdout)] == [1] * 6
    ran = run(str(path), "--policy", "native,bound", "--capacity", "2TiB", "--json")
    assert [each["oom"] for each in json.loads(ran.stdout)] == [None] * 2


def test_the_smallest_capacity_of_little_and_of_absurdly_much(tmp_path):
    path = tmp_path / "job.trace"
    for size, smallest in ((512, 2 * MIB), (1 << 62, None)):
        path.write_text(f"a 1 {size} 0\n")
        ran = run(str(path), "--policy", "glake,native,bound", "--find-min-capacity", "--json")
        assert ran.exit_code == 0, ran.output
        found = [each["min_capacity_bytes"] for each in json.loads(ran.stdout)]
        assert found == [smallest] * 3


def test_a_capacity_no_device_has_is_refused_by_the_library_too(tiny):
    trace = load_trace(tiny)
    with pytest.raises(RuntimeError, match=r"8796093022209 bytes.*8 TiB"):
        run_replay(trace, "native", capacity=(1 << 43) + 1)
    with pytest.raises(RuntimeError, match="one granule of 2 MiB"):
        run_replay(trace, "glake", capacity=MIB)


def test_a_limit_of_address_space_is_enough_for_a_replay():
    """Login nodes set `ulimit -v`. A device's range is TiBs long, but its tables grow by need."""
    command = f"ulimit -v 6000000; exec {sys.executable} -m glake replay '{FIXED}' --policy glake"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "glake" in ran.stdout
