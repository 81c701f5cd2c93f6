"""`glake trace`, by command: facts, conversion, and exports that keep to their formats."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pickle
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from glake.cli import main
from glake.trace import facts, memory_viz
from glake.trace.convert import convert
from glake.trace.format import TraceWriter, read_events
from glake.trace.replay import load_trace

MIB = 1 << 20
TRACES = Path(__file__).resolve().parents[1] / "traces"
STREAMS = str(TRACES / "fsdp-streams.trace.gz")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["trace", *map(str, arguments)])


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.trace.gz"
    with TraceWriter(path, {"job": "tiny"}) as trace:
        trace.alloc(1, 5 * MIB, tag="init;weights")
        trace.step(0)
        trace.alloc(2, 1000, stream=3, tag="forward;train.py:100:step")
        trace.record_stream(2, 1)
        trace.alloc(3, MIB, tag="forward;train.py:100:step")
        trace.free(2)
        trace.step(2)
        trace.alloc(2, 300)
    return path


def test_info_counts_and_says_who_held_what(job):
    ran = run("info", job, "--json")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    expected = {
        "events": 8, "allocations": 4, "frees": 1, "record_streams": 1, "steps": 2,
        "first_step": 0, "last_step": 2, "peak_live_bytes": 6 * MIB + 1000, "peak_event": 4,
        "peak_step": 0, "peak_live_blocks": 3, "end_live_bytes": 6 * MIB + 300,
        "end_live_blocks": 3, "tagged_allocations": 3, "allocated_bytes": 6 * MIB + 1300,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["header"]["job"] == "tiny"
    assert found["holders"] == [
        {"tag": "init;weights", "bytes": 5 * MIB, "blocks": 1},
        {"tag": "forward;train.py:100:step", "bytes": MIB + 1000, "blocks": 2},
    ]
    assert found["streams"][1:] == [
        {"stream": 1, "allocations": 0, "bytes": 0, "recorded": 1},
        {"stream": 3, "allocations": 1, "bytes": 1000, "recorded": 0},
    ]
    assert found["size_classes"][0] == {"least": 256, "allocations": 1, "bytes": 300}


def test_info_agrees_with_the_loaded_trace():
    found, loaded = facts.scan(STREAMS), load_trace(STREAMS)
    for name in ("events", "allocations", "frees", "steps", "peak_live_bytes", "end_live_bytes"):
        assert getattr(found, name) == getattr(loaded, name)
    assert found.peak_event == loaded.peak_live_event
    held = [(each.tag, each.bytes, each.blocks) for each in found.holders]
    assert held == loaded.holders(found.peak_event)


def test_info_is_a_table_for_people(job):
    ran = run("info", job, "--holders", 1)
    assert ran.exit_code == 0
    for text in ("6.00 MiB in 3 blocks", "event 4, step 0", "init;weights", "(1 further tags)"):
        assert text in ran.stdout, ran.stdout
    assert "train.py:100:step" in run("info", job).stdout


def test_perfetto_holds_to_the_trace_event_format(job, tmp_path):
    out = tmp_path / "job.json.gz"
    ran = run(
        "export", job, "--to", "perfetto", "-o", out, "--policy", "native", "--capacity", "2MiB"
    )
    assert ran.exit_code == 0, ran.output
    data = json.loads(gzip.decompress(out.read_bytes()))
    assert data["otherData"]["job"] == "tiny"
    kinds: dict[str, list[Any]] = defaultdict(list)
    for event in data["traceEvents"]:
        assert {"ph", "name", "ts", "pid", "tid"} <= event.keys()
        assert isinstance(event["ts"], int) and event["ts"] >= 0
        kinds[event["ph"]].append(event)
    assert kinds.keys() == {"M", "X", "C", "b", "e", "i"}
    live = [(e["ts"], e["args"]["bytes"]) for e in kinds["C"] if e["name"] == "live bytes"]
    assert max(size for _, size in live) == 6 * MIB + 1000
    after = [5 * MIB] * 2 + [5 * MIB + 1000] * 2 + [6 * MIB + 1000] + [6 * MIB] * 2
    assert live == [*enumerate(after), (7, 6 * MIB + 300)]
    steps = [(e["name"], e["ts"], e["dur"]) for e in kinds["X"]]
    assert steps == [("step 0", 1, 5), ("step 2", 6, 2)]
    assert kinds["i"][0]["name"] == "native: out of memory" and kinds["i"][0]["ts"] == 0
    begun = {(e["cat"], e["id"]): e for e in kinds["b"]}
    ended = {(e["cat"], e["id"]): e for e in kinds["e"]}
    assert begun.keys() == ended.keys() and len(begun) == len(kinds["b"]) == 4
    for key, event in begun.items():
        assert event["ts"] < ended[key]["ts"] and event["name"] == ended[key]["name"]
    assert {e["name"] for e in kinds["b"]} == {"weights", "train.py:100:step", "untagged"}


def test_perfetto_is_bounded_by_points_and_blocks(tmp_path):
    from glake.trace import perfetto

    out = tmp_path / "job.json"
    perfetto.export(STREAMS, out, points=50, blocks=7)
    events = json.loads(out.read_text())["traceEvents"]
    live = [each["args"]["bytes"] for each in events if each["ph"] == "C"]
    assert 40 <= len(live) <= 50 and max(live) == load_trace(STREAMS).peak_live_bytes
    slices = [each["args"]["bytes"] for each in events if each["ph"] == "b"]
    largest = sorted((e.bytes for e in read_events(STREAMS) if e.op == "a"), reverse=True)[:7]
    assert sorted(slices, reverse=True) == largest


def _viz() -> ModuleType:
    """torch.cuda._memory_viz, without the seconds that importing torch takes."""
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        pytest.skip("torch is not installed")
    path = Path(torch.submodule_search_locations[0]) / "cuda" / "_memory_viz.py"
    spec = importlib.util.spec_from_file_location("memory_viz_of_torch", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_viz_opens_the_snapshot(job, tmp_path):
    viz, out = _viz(), tmp_path / "snapshot.pickle"
    ran = run("export", job, "--to", "memory_viz", "-o", out)
    assert ran.exit_code == 0, ran.output
    shot = pickle.loads(out.read_bytes())
    segment = shot["segments"][0]
    assert sum(each["size"] for each in segment["blocks"]) == segment["total_size"]
    assert segment["requested_size"] == 6 * MIB + 300
    flame = viz.memory(shot, format_flamegraph=lambda lines: lines)
    assert "weights" in flame and "active_allocated" in flame
    assert "seg_" in viz.segments(shot, format_flamegraph=lambda lines: lines)
    assert "total_reserved" in viz.segsum(shot)
    assert "alloc" in viz.trace(shot)
    for plot in (viz.trace_plot(shot), viz.segment_plot(shot), viz.trace_plot(shot, None, True)):
        assert "MemoryViz.js" in plot
    frames = shot["device_traces"][0][2]["frames"]
    assert frames == [
        {"filename": "train.py", "line": 100, "name": "step"},
        {"filename": "tag", "line": 0, "name": "forward"},
    ]


def test_blocks_of_the_snapshot_never_overlap():
    shot = memory_viz.build(STREAMS)
    (segment,) = shot["segments"]
    end = segment["address"] + segment["total_size"]
    live: dict[int, int] = {}
    for entry in shot["device_traces"][0][1:]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["addr"] + entry["size"]
            assert segment["address"] <= entry["addr"] and live[entry["addr"]] <= end
        elif entry["action"] == "free_completed":
            del live[entry["addr"]]
        if len(live) % 40 == 0:
            spans = sorted(live.items())
            assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    kept = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
    assert {each["address"] for each in kept} == live.keys()
    assert segment["total_size"] < 1.5 * load_trace(STREAMS).peak_live_bytes


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_freed_neighbours_of_the_snapshot_are_one_hole(order):
    layout = memory_viz._Layout()
    blocks = [layout.take(600) for _ in range(4)]
    for each in order:
        layout.give_back(blocks[each], 600)
    assert layout.take(3 * 1024) == blocks[0]
    layout.give_back(blocks[3], 600)
    assert layout.take(2000) == blocks[3] and layout.top == blocks[3] + 2048


def test_a_trace_comes_back_from_memory_viz(job, tmp_path):
    there, back = tmp_path / "s.pickle", tmp_path / "back.trace"
    memory_viz.export(job, there)
    result = convert(there, back)
    assert result.before_history == 0 and result.notes == []
    ours = [(e.op, e.bytes, e.tag) for e in read_events(job) if e.op != "r"]
    assert [(e.op, e.bytes, e.tag) for e in read_events(back)] == ours


def test_convert_tells_what_it_did(tmp_path):
    events = [{"action": "free_requested", "addr": 4, "size": 9, "stream": 0, "frames": []}]
    source, out = tmp_path / "s.pickle", tmp_path / "t.trace"
    source.write_bytes(pickle.dumps({"device_traces": [events], "segments": []}))
    ran = run("convert", source, "-o", out)
    assert ran.exit_code == 0, ran.output
    assert f"{out}: 2 events, peak live 9 B" in ran.stdout
    assert "note: 1 block was live before the history began" in ran.stderr
    assert load_trace(out).events == 2


@pytest.mark.parametrize(
    ("name", "content", "command", "reason"),
    [
        ("t", "a 0 512 0\nf 1\n", ["info"], ":2: id: 1 is not a live block"),
        ("t", "a 0 -5 0\n", ["info", "--json"], ":1: bytes: '-5' is negative"),
        ("t", "a 0 5 0 \x01\n", ["info"], ":1: tag: '?' is not printable"),
        ("t", "x\n", ["export", "--to", "perfetto", "-o", "out"], ":1: op: unknown operation"),
        ("t", "", ["export", "--to", "memory_viz", "-o", "out"], "without an event"),
        ("t", "s 1\ns 2\n", ["info"], ":3: op: the trace ends without an allocation"),
        ("t", "a 1 2 3\n", ["export", "--to", "memory_viz", "-o", "t"], "is the input"),
        (
            "t", "a 1 2 3\n",
            ["export", "--to", "memory_viz", "--policy", "native", "-o", "o"], "perfetto",
        ),
        ("t", "a 1 2 3\n", ["export", "--to", "perfetto", "-o", "no/o"], "no such folder"),
        ("t", "a 1 2 3\n", ["convert", "-o", "out"], "t: a trace already: replay"),
        ("t", "a 1 2\n", ["convert", "-o", "out"], "not a pickle of plain values"),
        ("t", "a 1 2 3\n", ["convert", "-o", "no/o"], "no such folder"),
        ("t", "a 1 2 3\n", ["convert", "-o", "t"], "is the input"),
        ("t", "a 1 2 3\n", ["replay"], "No such command"),
    ],
)  # fmt: skip
def test_bad_input_exits_with_two_and_one_reason(
    tmp_path, monkeypatch, name, content, command, reason
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    ran = run(command[0], name, *command[1:])
    assert ran.exit_code == 2, ran.output
    assert ran.stdout == "" and reason in ran.stderr and "Traceback" not in ran.stderr
    assert not Path("out").exists()


def _cut(archive: bytes) -> bytes:
    return archive[:20000]


def _flipped(archive: bytes) -> bytes:
    """An archive that unpacks to garbage, which only the checksum at its end shows."""
    return archive[:20000] + bytes([archive[20000] ^ 0x55]) + archive[20001:]


@pytest.mark.parametrize("broken_by", [_cut, _flipped])
def test_a_broken_archive_is_named_as_such(tmp_path, broken_by):
    broken = tmp_path / "broken.trace.gz"
    broken.write_bytes(broken_by(Path(STREAMS).read_bytes()))
    for command in (["info"], ["export", "--to", "memory_viz", "-o", tmp_path / "out"]):
        ran = run(command[0], broken, *command[1:])
        assert ran.exit_code == 2 and ran.stdout == ""
        assert f"{broken}:" in ran.stderr and ": gzip: the archive is truncated" in ran.stderr
    with pytest.raises(ValueError, match="gzip: the archive is truncated or damaged"):
        load_trace(broken)
