"""The trace parser: what it accepts, and the line and field it names when it does not."""

from __future__ import annotations

import gzip
from errno import ENOENT
from pathlib import Path

import pytest

from glake import _C, errors
from glake.trace.replay import load_trace

TRACES = Path(__file__).resolve().parents[1] / "traces"


def parse(text: str, chunk: int = 1 << 20):
    data = text.encode()
    return _C.parse_trace("t", [data[i : i + chunk] for i in range(0, len(data), chunk)])


def test_counts_header_and_peak():
    trace = parse("# job: train\n# free text\n\ns 0\na 7 100 0\na 8 50 2\nf 7\nr 8 1\ns 3\nf 8\n")
    assert trace.header == {"job": "train"}
    assert (trace.events, trace.allocations, trace.frees, trace.steps) == (7, 2, 2, 2)
    assert (trace.peak_live_bytes, trace.end_live_bytes) == (150, 0)


def test_a_freed_id_may_be_used_again():
    trace = parse("a 1 10 0\nf 1\na 1 20 0\n")
    assert trace.end_live_bytes == 20


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_chunks_may_be_cut_anywhere(chunk):
    text = "# job: x\r\na 1 1000 0\r\na 2 24 3\nf 1\ns 12"
    trace = parse(text, chunk)
    assert (trace.events, trace.peak_live_bytes, trace.header) == (4, 1024, {"job": "x"})


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ("x 1 2 3", "op"),
        ("alloc 1 2 3", "op"),
        ("a", "id"),
        ("a 5", "bytes"),
        ("a 5 512", "stream"),
        ("f", "id"),
        ("r 1", "stream"),
        ("s", "step"),
        ("a 5 -512 0", "bytes"),
        ("a 5 0 0", "bytes"),
        ("a 5 9223372036854775808 0", "bytes"),
        ("a 5 99999999999999999999999 0", "bytes"),
        ("a 5 9223372036854775807 0", "bytes"),  # allowed alone, but not beside live bytes
        ("a 5 12.5 0", "bytes"),
        ("a 5 0x10 0", "bytes"),
        ("a 5 512 -1", "stream"),
        ("a 5 512 4294967296", "stream"),
        ("a 5 512 0 tag 9", "end of line"),
        ("f 1 9", "end of line"),
        ("r 1 0 9", "end of line"),
        ("s 2 9", "end of line"),
        ("a 1 512 0", "id"),  # live already
        ("f 2", "id"),
        ("r 2 0", "id"),
        ("s 1", "step"),  # not above the last
        ("s 0", "step"),
    ],
)
def test_a_bad_line_is_named(bad, field):
    with pytest.raises(errors.TraceError) as caught:
        parse(f"# job: x\na 1 100 0\ns 1\n{bad}\nf 1\n")
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.file, error.line, error.field) == ("t", 4, field)
    assert str(error).startswith(f"t:4: {field}: ")


@pytest.mark.parametrize("last", ["f", "a 2 10", "a 2 1000000 0 tag extra", "s", "f 12"])
def test_a_bad_last_line_without_an_end_may_be_a_broken_recording(last):
    with pytest.raises(errors.TraceError, match=r"^t:2: .*killed: delete the line"):
        parse(f"a 1 100 0\n{last}")
    with pytest.raises(errors.TraceError) as ended:
        parse(f"a 1 100 0\n{last}\n")
    assert "killed" not in str(ended.value)


def test_double_free_is_named():
    with pytest.raises(errors.TraceError, match="t:3: id: 1 is not a live block"):
        parse("a 1 100 0\nf 1\nf 1\n")


@pytest.mark.parametrize("text", ["", "\n\n", "# job: x\n"])
def test_a_trace_without_events_is_refused(text):
    with pytest.raises(errors.TraceError, match="without an event"):
        parse(text)


def test_binary_and_endless_lines_are_refused_without_being_shown_raw():
    with pytest.raises(errors.TraceError) as caught:
        _C.parse_trace("t", [b"\x1b[31mred\x00 1 2\n"])
    assert str(caught.value).isprintable()
    with pytest.raises(errors.TraceError, match="longer than"):
        _C.parse_trace("t", [b"a" * 40000, b"a" * 40000])


def test_chunks_must_be_bytes():
    with pytest.raises((TypeError, RuntimeError)):
        _C.parse_trace("t", [3])


@pytest.mark.parametrize("name", ["gpt-fixed", "gpt-varying", "fsdp-streams"])
def test_own_traces_agree_with_their_headers(name):
    trace = load_trace(TRACES / f"{name}.trace.gz")
    assert trace.peak_live_bytes == int(trace.header["peak_live_bytes"])
    assert trace.end_live_bytes == int(trace.header["end_live_bytes"])
    assert trace.steps >= 8


def test_gzip_and_plain_are_told_apart_by_content(tmp_path):
    packed = TRACES / "gpt-fixed.trace.gz"
    plain = tmp_path / "job.gz"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    assert load_trace(plain).events == load_trace(packed).events


@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_truncated_gzip_is_named(tmp_path, keep):
    data = (TRACES / "gpt-fixed.trace.gz").read_bytes()
    broken = tmp_path / "broken.trace.gz"
    broken.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(errors.TraceError) as caught:
        load_trace(broken)
    assert (caught.value.file, caught.value.field) == (str(broken), "gzip")
    assert caught.value.line >= 1


def test_corrupt_gzip_is_named(tmp_path):
    data = bytearray((TRACES / "gpt-fixed.trace.gz").read_bytes())
    data[len(data) // 2] ^= 0xFF
    broken = tmp_path / "broken.trace.gz"
    broken.write_bytes(bytes(data))
    with pytest.raises(errors.TraceError):
        load_trace(broken)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="No such file") as caught:
        load_trace(tmp_path / "none.trace")
    assert isinstance(caught.value, errors.FileFailed)
    assert (caught.value.errno, caught.value.filename) == (ENOENT, str(tmp_path / "none.trace"))
