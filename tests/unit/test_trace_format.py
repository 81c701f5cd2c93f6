"""Writing traces, reading them an event at a time, tags, and the two readers' agreement."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_python import output
from rich.console import Console

from glake import _C, errors
from glake.trace import report
from glake.trace.format import MAX_TAG, Event, TraceWriter, clean_tag, read_events
from glake.trace.replay import load_trace, replay

MIB = 1 << 20
PROGRAMS = Path(__file__).parent / "programs"
TRACES = Path(__file__).resolve().parents[1] / "traces"


def parse(text: str | bytes):
    return _C.parse_trace("t", [text.encode() if isinstance(text, str) else text])


@pytest.mark.parametrize("name", ["job.trace", "job.trace.gz"])
def test_what_is_written_is_read(tmp_path, name):
    path = tmp_path / name
    with TraceWriter(path, {"job": "train", "world": 8}) as trace:
        trace.step(0)
        trace.alloc(7, 100, tag="forward;layers.0.größe;mm")
        trace.alloc(8, 50, stream=2)
        trace.record_stream(7, 2)
        trace.comment("free text")
        trace.free(7)
        trace.step(3)
        assert (trace.live_bytes, trace.peak_live_bytes) == (50, 150)
        trace.fact("peak_live_bytes", trace.peak_live_bytes)
    reader = read_events(path)
    assert list(reader) == [
        Event("s", 0, 0, 0, "", 4),
        Event("a", 7, 100, 0, "forward;layers.0.größe;mm", 5),
        Event("a", 8, 50, 2, "", 6),
        Event("r", 7, 100, 2, "", 7),
        Event("f", 7, 100, 0, "", 9),
        Event("s", 3, 0, 0, "", 10),
    ]
    facts = {"job": "train", "world": "8", "peak_live_bytes": "150"}
    assert facts.items() <= reader.header.items()
    loaded = load_trace(path)
    assert loaded.header == reader.header
    assert loaded.tags == ["", "forward;layers.0.größe;mm"]
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_the_same_calls_give_the_same_file(tmp_path):
    files = []
    for name in ("one.trace.gz", "another.trace.gz"):
        with TraceWriter(tmp_path / name, {"seed": 1}) as trace:
            trace.alloc(1, 512)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda t: t.alloc(1, 5), "allocated already"),
        (lambda t: t.alloc(2, 0), "nbytes 0"),
        (lambda t: t.alloc(2, -512), "nbytes -512"),
        (lambda t: t.alloc(2, (1 << 63) - 1), "nbytes"),
        (lambda t: t.alloc(-2, 5), "id -2"),
        (lambda t: t.alloc(2, 5, stream=1 << 32), "stream"),
        (lambda t: t.alloc(2, 5, tag="two words"), "tag 'two words'"),
        (lambda t: t.alloc(2, 5, tag="x" * (MAX_TAG + 1)), "at most 1024 bytes"),
        (lambda t: t.alloc(2, 5, tag="red\x1b[31m"), "printable"),
        (lambda t: t.free(2), "not a live block"),
        (lambda t: t.record_stream(2, 0), "not a live block"),
        (lambda t: t.record_stream(1, -1), "stream -1"),
        (lambda t: t.step(4), "step 4"),
        (lambda t: t.fact("a:b", 1), "colon"),
        (lambda t: t.fact("key", "two\nlines"), "line break"),
        (lambda t: t.fact("key", "x" * 70000), "65536"),
        (lambda t: t.comment("two\nlines"), "line break"),
    ],
)
def test_what_the_format_forbids_is_not_written(tmp_path, call, reason):
    path = tmp_path / "t.trace"
    with TraceWriter(path) as trace:
        trace.step(4)
        trace.alloc(1, 5)
        with pytest.raises(ValueError, match=reason):
            call(trace)
    assert load_trace(path).events == 2


def test_any_text_becomes_a_tag():
    assert clean_tag("a b\tc\x1b\ud800") == "a_b_c__"
    long = clean_tag("ä" * 1000 + ";last")
    assert long.startswith("...") and long.endswith("ä;last") and len(long.encode()) <= MAX_TAG
    assert parse(f"a 1 2 3 {long}\n").tags[1] == long


@pytest.mark.parametrize(
    "tag",
    [
        b"\xff", b"a\x01", b"a\x7f", b"a\xc2\x85", b"\xc3", b"\xe0\x80\x80", b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80", b"\xc0\xaf", b"x" * (MAX_TAG + 1),
    ],
)  # fmt: skip
def test_bad_tags_are_named(tag):
    with pytest.raises(errors.TraceError) as caught:
        parse(b"a 1 2 3 ok\na 2 2 3 " + tag + b"\n")
    assert (caught.value.line, caught.value.field) == (2, "tag")
    assert str(caught.value).isprintable()


def test_what_follows_a_tag_is_refused():
    with pytest.raises(
        errors.TraceError, match="t:1: end of line: unexpected further field 'more'"
    ):
        parse("a 1 2 3 tag more\n")


def test_holders_sizes_and_timeline():
    trace = parse("a 1 100 0 x\na 2 30 0 y\na 3 50 0 x\nf 1\na 1 7 0\na 4 30 0\n")
    assert trace.tags == ["", "x", "y"]
    assert trace.holders(2) == [("x", 150, 2), ("y", 30, 1)]
    assert trace.holders(5) == [("x", 50, 1), ("", 37, 2), ("y", 30, 1)]
    assert trace.peak_live_event == 2
    for bad in (-1, 6):
        with pytest.raises(errors.InvalidArgument, match="events 0 to 5"):
            trace.holders(bad)
    assert trace.sizes() == [(7, 1), (30, 2), (50, 1), (100, 1)]
    assert trace.live_timeline(3) == [(0, 130), (2, 180), (4, 117)]
    assert trace.live_timeline(100)[3] == (3, 80)


def test_out_of_memory_says_who_held_what():
    text = f"a 1 {4 * MIB} 0 weights\na 2 {3 * MIB} 0 moments\nf 2\na 3 {90 * MIB} 0 boom\n"
    result = replay(parse(text), "native", capacity=64 * MIB)
    assert result.oom is not None and result.oom.event == 3
    assert [(each.tag, each.bytes, each.blocks) for each in result.oom.holders] == [
        ("weights", 4 * MIB, 1)
    ]
    console = Console(file=io.StringIO(), width=200)
    report.print_table([result], console)
    assert "held: 4.00 MiB in 1 block: weights" in console.file.getvalue()
    assert report.to_json(result)["oom"]["holders"][0]["tag"] == "weights"
    untagged = replay(parse(f"a 3 {90 * MIB} 0\n"), "native", capacity=64 * MIB)
    assert untagged.oom is not None and untagged.oom.holders == []


def test_events_before_a_bad_line_are_handed_out(tmp_path):
    path = tmp_path / "bad.trace"
    path.write_text("a 1 5 0\nf 2\n")
    reader = read_events(path)
    assert next(reader).op == "a"
    with pytest.raises(errors.TraceError, match=f"{path}:2: id: 2 is not a live block"):
        next(reader)


@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_a_truncated_archive_is_named_as_by_load_trace(tmp_path, keep):
    data = (TRACES / "gpt-varying.trace.gz").read_bytes()
    broken = tmp_path / "broken.trace.gz"
    broken.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(errors.TraceError) as caught:
        list(read_events(broken))
    assert caught.value.field == "gzip"
    assert caught.value.line > 1


def test_reading_takes_no_more_memory_for_a_longer_trace(tmp_path):
    def peak(rounds: int) -> int:
        path = tmp_path / f"{rounds}.trace.gz"
        with TraceWriter(path) as trace:
            for number in range(rounds):
                trace.alloc(number, 512, tag=f"layer.{number % 50}")
                trace.free(number)
        tracemalloc.start()
        assert sum(1 for _ in read_events(path)) == 2 * rounds
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(48_000) < 1.2 * peak(24_000)


SOME = gzip.decompress((TRACES / "fsdp-streams.trace.gz").read_bytes()).splitlines(True)[:60]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    lines = list(SOME)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["drop", "double", "swap", "cut", "byte", "field"]))
        if kind == "drop":
            del lines[at]
        elif kind == "double":
            lines.insert(at, lines[at])
        elif kind == "swap":
            lines[at], lines[-1] = lines[-1], lines[at]
        elif kind == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        elif kind == "byte":
            data = bytearray(lines[at] or b"\n")
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
            lines[at] = bytes(data)
        else:
            extra = draw(st.one_of(st.binary(max_size=8), st.integers().map(lambda n: b"%d" % n)))
            lines[at] = lines[at].rstrip(b"\n") + b" " + extra + b"\n"
    return b"".join(lines)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=mutated(), chunk=st.integers(1, 400))
def test_both_readers_agree_on_anything(tmp_path, text, chunk):
    path = tmp_path / "mutated.trace"
    path.write_bytes(text)
    try:
        whole = _C.parse_trace(str(path), [text[i : i + chunk] for i in range(0, len(text), chunk)])
        outcome = (whole.events, whole.end_live_bytes, whole.header)
    except errors.TraceError as error:
        outcome = (str(error), error.line, error.field)
    reader = read_events(path)
    try:
        live = events = 0
        for event in reader:
            events += 1
            live += {"a": event.bytes, "f": -event.bytes}.get(event.op, 0)
        streamed = (events, live, reader.header)
    except errors.TraceError as error:
        streamed = (str(error), error.line, error.field)
    assert streamed == outcome


def test_live_recording_writes_tags_and_steps(tmp_path):
    path = tmp_path / "live.trace"
    environment = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "256MiB", "GLAKE_TRACE": str(path)}
    output(PROGRAMS / "tagged.py", **environment)
    events = list(read_events(path))
    assert [(each.op, each.bytes) for each in events] == [
        ("s", 0), ("a", 1000), ("a", 3000), ("a", 500), ("a", 2000), ("s", 0), ("f", 1000),
    ]  # fmt: skip
    tags = [each.tag for each in events]
    assert tags[1].startswith("layers_0;größe_xxx") and len(tags[1].encode()) == MAX_TAG
    assert tags[2] == tags[4] == ""
    assert tags[3] == "b" * 1023 + "_"


def test_a_full_disk_is_an_error_of_glakes():
    # The first lines stay in a buffer, which the end of the file writes.
    writer = TraceWriter("/dev/full", packed=False)
    with pytest.raises(errors.FileFailed, match="No space left"):
        writer.close()
    writer = TraceWriter("/dev/full", packed=False)
    long = {"a text of more than a buffer": "x" * 60_000}
    with pytest.raises(errors.FileFailed, match="No space left"):
        writer.fact("long", long)


def test_a_closed_trace_takes_nothing_more(tmp_path):
    writer = TraceWriter(tmp_path / "job.trace")
    writer.step(1)
    writer.close()
    for write in (lambda: writer.step(2), lambda: writer.fact("key", 1)):
        with pytest.raises(errors.TraceError, match=r"job\.trace is closed"):
            write()
    assert "s 1" in (tmp_path / "job.trace").read_text()
