"""Traces from PyTorch's snapshots and RMM's logs. No pickle is allowed to run anything."""

from __future__ import annotations

import copyreg
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_python import output

from glake.errors import ConvertError, FileFailed, RefusedPickle
from glake.trace import plain_pickle
from glake.trace.convert import convert
from glake.trace.format import MAX_TAG, read_events
from glake.trace.history import BEFORE_HISTORY

PROGRAMS = Path(__file__).parent / "programs"
SIDE = 0x5566
PYTHON = "/home/me/train.py"
TORCH = "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py"


def frame(name: str, line: int = 1, filename: str = PYTHON) -> dict[str, Any]:
    return {"name": name, "line": line, "filename": filename}


STACK = [
    frame("at::native::empty", 0, "??"),
    frame("forward", 125, TORCH),
    frame("step", 7),
    frame("main", 90),
]


def entry(action: str, addr: int, size: int, stream: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "frames": [], **more}


def freed(addr: int, size: int) -> list[dict[str, Any]]:
    return [entry("free_requested", addr, size), entry("free_completed", addr, size)]


def segment(blocks: list[tuple[int, int, str]], **more: Any) -> dict[str, Any]:
    return {
        "device": 0,
        "address": blocks[0][0],
        "stream": 0,
        "blocks": [
            {"address": at, "size": -(-size // 512) * 512, "requested_size": size, "state": state,
             "frames": STACK}
            for at, size, state in blocks
        ],
        **more,
    }  # fmt: skip


def dump(tmp_path: Path, events: list[Any], segments: list[Any] = (), **more: Any) -> Path:
    path = tmp_path / "snapshot.pickle"
    data = {"device_traces": [events], "segments": list(segments), **more}
    path.write_bytes(pickle.dumps(data))
    return path


def lines(trace: Path) -> list[tuple[Any, ...]]:
    return [(e.op, e.id, e.bytes, e.stream, e.tag) for e in read_events(trace)]


def test_a_history_becomes_a_trace(tmp_path):
    events = [
        entry("segment_alloc", 0, 20 << 20),
        entry("alloc", 0, 1000, frames=STACK),
        entry("alloc", 2048, 700, SIDE, frames=[frame("a b;c", 3)], user_metadata="tag"),
        *freed(0, 1000),
        entry("alloc", 0, 300, frames=STACK[:1]),
        {"action": "oom", "device_free": 5, "size": 9, "stream": 0, "frames": []},
        entry("snapshot", 0, 0),
    ]
    out = tmp_path / "job.trace.gz"
    result = convert(dump(tmp_path, events), out)
    assert lines(out) == [
        ("a", 0, 1000, 0, "train.py:90:main;train.py:7:step"),
        ("a", 1, 700, 1, "tag;train.py:3:a_b,c"),
        ("f", 0, 1000, 0, ""),
        ("a", 2, 300, 0, "at::native::empty"),
    ]
    assert (result.events, result.peak_live_bytes, result.end_live_bytes) == (4, 1700, 1000)
    reader = read_events(out)
    list(reader)
    assert reader.header["recorder"] == "pytorch snapshot"
    assert reader.header["peak_live_bytes"] == "1700"


def test_blocks_from_before_a_truncated_history_come_first(tmp_path):
    events = [
        *freed(4096, 100),  # its allocation has left the ring buffer
        entry("free_completed", 8192, 55),  # here even the request to free it has left
        entry("alloc", 4096, 200),
    ]
    held = segment(
        [(0, 900, "active_allocated"), (1024, 50, "active_pending_free"), (1536, 9, "inactive"),
         (4096, 200, "active_allocated")]
    )  # fmt: skip
    out = tmp_path / "job.trace"
    result = convert(dump(tmp_path, events, [held, segment([(9, 5, "inactive")], device=1)]), out)
    assert lines(out) == [
        ("a", 0, 900, 0, "train.py:90:main;train.py:7:step"),
        ("a", 1, 100, 0, BEFORE_HISTORY),
        ("f", 1, 100, 0, ""),
        ("a", 2, 200, 0, ""),
    ]
    assert result.before_history == 2
    assert any("2 blocks were live before the history" in note for note in result.notes)
    assert not any("contradict" in note or "other way" in note for note in result.notes)


def test_what_a_history_leaves_out_is_said(tmp_path):
    events = [
        entry("alloc", 0, 10),
        entry("alloc", 512, 20),
        entry("free_requested", 512, 20),
        entry("alloc", 0, 30),  # the free of the 10 bytes is missing
        entry("free_completed", 512, 20),
        *freed(0, 30),
        entry("free_requested", 0, 30),
        entry("segment_free", 0, 20 << 20),
    ]
    held = segment([(0, 30, "active_allocated")])
    notes = " | ".join(convert(dump(tmp_path, events, [held]), tmp_path / "t.trace").notes)
    assert "1 frees completed late" in notes
    assert "1 addresses were allocated again" in notes
    assert "1 frees of blocks already freed" in notes
    assert "1 block is live by the history and not by the segments" in notes
    assert "no step marks" in notes
    assert "memory went back to the driver 1 times" in notes


def test_profiler_steps_become_steps(tmp_path):
    events = [entry("alloc", n * 512, 10, time_us=100 + n) for n in range(4)]
    marks = [
        {"name": f"ProfilerStep#{n}", "stage": stage, "time_us": time, "device": 0}
        for n, stage, time in [(5, "START", 101), (5, "END", 103), (6, "START", 103)]
    ]
    out = tmp_path / "t.trace"
    result = convert(dump(tmp_path, events, external_annotations=marks), out)
    assert [line[:2] for line in lines(out) if line[0] == "s"] == [("s", 5), ("s", 6)]
    assert [line[0] for line in lines(out)] == ["a", "s", "a", "a", "s", "a"]
    assert result.steps == 2 and not any("step" in note for note in result.notes)


def test_the_first_optimizer_s_steps_become_steps(tmp_path):
    events = [entry("alloc", n * 512, 10, time_us=100 + n) for n in range(4)]
    marks = [
        {"name": f"Optimizer.step#{name}.step", "stage": stage, "time_us": time, "device": 0}
        for name, stage, time in [
            ("AdamW", "START", 100), ("AdamW", "END", 101), ("SGD", "END", 102),
            ("AdamW", "END", 103),
        ]
    ]  # fmt: skip
    out = tmp_path / "t.trace"
    convert(dump(tmp_path, events, external_annotations=marks), out)
    assert [line[0] for line in lines(out)] == ["a", "s", "a", "a", "s", "a"]
    assert [line[1] for line in lines(out) if line[0] == "s"] == [0, 1]


def test_operators_and_backward_functions_are_named(tmp_path):
    native = [
        frame("c10::cuda::CUDACachingAllocator::malloc(unsigned long)", 0, ""),
        frame("at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&)", 0, "??"),
        frame("at::_ops::mm::call(at::Tensor const&)", 0, "??"),
        frame("torch::autograd::generated::MmBackward0::apply(std::vector<x>&&)", 0, "F.cpp"),
    ]
    events = [
        entry("alloc", 0, 10, frames=native),
        entry("alloc", 512, 10, frames=[*native[:3], *STACK[2:]]),
    ]
    out = tmp_path / "t.trace"
    convert(dump(tmp_path, events), out)
    assert [line[4] for line in lines(out)] == [
        "MmBackward0;aten.mm",
        "train.py:90:main;train.py:7:step;aten.mm",
    ]


def test_long_stacks_keep_their_innermost_frames(tmp_path):
    stack = [frame(f"function_{n}" * 5, n) for n in range(100)]
    out = tmp_path / "t.trace"
    convert(dump(tmp_path, [entry("alloc", 0, 10, frames=stack)]), out)
    tag = lines(out)[0][4]
    assert len(tag.encode()) <= MAX_TAG
    assert tag.startswith("...;") and tag.endswith("train.py:0:" + "function_0" * 5)


def test_devices_are_chosen(tmp_path):
    one, two = [entry("alloc", 0, 10)], [entry("alloc", 0, 20)]
    path, out = tmp_path / "s.pickle", tmp_path / "t.trace"
    path.write_bytes(pickle.dumps({"device_traces": [one, [], two], "segments": []}))
    with pytest.raises(ConvertError, match="devices 0, 2 have history; choose one"):
        convert(path, out)
    with pytest.raises(ConvertError, match="no history of device 1; has: 0, 2"):
        convert(path, out, 1)
    convert(path, out, 2)
    assert lines(out) == [("a", 0, 20, 0, "")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "device_traces: missing"),
        ({"segments": []}, "device_traces: missing"),
        ({"device_traces": [[]], "segments": []}, "no device has events"),
        ({"device_traces": [3]}, r"device_traces\[0\]: not a list"),
        ({"device_traces": [[3]]}, r"device_traces\[0\]\[0\]: int, where a dict belongs"),
        ({"device_traces": [[{}]]}, r"\[0\]\[0\].action: missing"),
        ({"device_traces": [[entry("alloc", 0, -5)]]}, r"\[0\]\[0\].size: -5 is negative"),
        ({"device_traces": [[entry("alloc", 0, True)]]}, r"\.size: 'True', not int"),
        ({"device_traces": [[entry("alloc", "x", 5)]]}, r"\.addr: 'x', not int"),
        ({"device_traces": [[entry("alloc", 0, 5, frames=[{}])]]}, r"frames.filename: missing"),
        ({"device_traces": [[entry("segment_alloc", 0, 5)]]}, "no allocation and no free"),
        ({"device_traces": [[entry("alloc", 0, 5)]], "segments": [{}]}, "blocks: missing"),
    ],
)
def test_what_is_no_snapshot_is_named(tmp_path, data, reason):
    path, out = tmp_path / "s.pickle", tmp_path / "t.trace"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(ConvertError, match=reason) as caught:
        convert(path, out)
    assert str(caught.value).startswith(f"{path}: ")
    assert not out.exists()


class Call:
    def __init__(self, function: Any, *arguments: Any):
        self.how = (function, arguments)

    def __reduce__(self) -> Any:
        return self.how


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_runs_nothing(tmp_path, protocol):
    ran = tmp_path / "ran"
    path = tmp_path / "s.pickle"
    data = {"device_traces": [[Call(os.mkdir, str(ran))]], "segments": []}
    path.write_bytes(pickle.dumps(data, protocol))
    with pytest.raises(RefusedPickle, match="it refers to (posix|os).mkdir") as caught:
        convert(path, tmp_path / "t.trace")
    assert "nothing in it was run" in str(caught.value)
    assert not ran.exists()
    # Python's own reader does run it.
    pickle.loads(path.read_bytes())
    assert ran.exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02cbuiltins\nobject\n)\x81.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
        b"\x80\x02\x82\x01.",  # an object of the extension registry
        b"Psomewhere\n.",  # a persistent object
        b"}}b.",  # state set on a dict
        b"\x80\x05\x97.",  # a buffer from outside
        b"}}R.",
        b"}(]\x81.",
        b"\x80\x02]r" + struct.pack("<I", 0x7FFFFFF0) + b".",  # a memo of 16 GiB
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",  # a terabyte of bytes
        b"",
        b"no pickle",
        pickle.dumps({"device_traces": [[]]})[:-3],
    ],
)
def test_no_pickle_does_harm(tmp_path, code):
    path = tmp_path / "s.pickle"
    path.write_bytes(code)
    with pytest.raises(RefusedPickle, match=str(path)):
        plain_pickle.load(path)


def test_what_the_program_registered_by_number_is_not_found(tmp_path):
    copyreg.add_extension("os", "getcwd", 240)
    try:
        loaded = b"\x80\x02\x82\xf0)R."
        assert pickle.loads(loaded) == os.getcwd()  # pickle now has it in its cache
        path = tmp_path / "s.pickle"
        path.write_bytes(loaded)
        with pytest.raises(RefusedPickle, match="it refers to os.getcwd"):
            plain_pickle.load(path)
    finally:
        copyreg.remove_extension("os", "getcwd", 240)


def test_a_pickle_of_a_type_is_refused(tmp_path):
    path = tmp_path / "s.pickle"
    for value in (Path("x"), {1: print}, [RefusedPickle], complex(1, 2)):
        path.write_bytes(pickle.dumps(value))
        with pytest.raises(RefusedPickle, match="it refers to"):
            plain_pickle.load(path)


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_snapshots_are_refused_or_converted(tmp_path, data):
    events = [entry("alloc", n * 512, 10 + n, frames=STACK) for n in range(5)] + freed(0, 10)
    whole = pickle.dumps({"device_traces": [events], "segments": []}, 4)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "s.pickle"
    path.write_bytes(bytes(damaged))
    try:
        convert(path, tmp_path / "t.trace")
    except ValueError as refused:
        assert str(path) in str(refused)
    else:
        assert list(read_events(tmp_path / "t.trace"))


def test_logs_of_rmm(tmp_path):
    log = tmp_path / "rmm.csv"
    log.write_text(
        "Thread,Time,Action,Pointer,Size,Stream\n"
        "1,10:00:00,free,0x200,64,0\n"
        "1,10:00:01,allocate,0x100,1000,0x5566\n"
        "1,10:00:02,allocate failure,(nil),9999,0\n"
        "2,10:00:03,free,0x100,1000,0x5566\n"
    )
    out = tmp_path / "t.trace"
    result = convert(log, out)
    assert lines(out) == [
        ("a", 0, 64, 0, BEFORE_HISTORY),
        ("f", 0, 64, 0, ""),
        ("a", 1, 1000, 1, ""),
        ("f", 1, 1000, 0, ""),
    ]
    assert not any("late" in note for note in result.notes)
    for bad, reason in [
        ("1,t,free,0x,1,0", "line 2: Pointer: '0x' is not a number"),
        ("1,t,free,0x1,-1,0", "line 2: Size: '-1' is no size"),
        ("1,t,free", "line 2: 3 columns"),
    ]:
        log.write_text(f"Thread,Time,Action,Pointer,Size,Stream\n{bad}\n")
        with pytest.raises(ConvertError, match=f"{log}: {reason}"):
            convert(log, out)


def test_a_conversion_that_fails_leaves_the_file_that_was_there(tmp_path):
    header = "Thread,Time,Action,Pointer,Size,Stream\n"
    long = "x" * 200_000  # longer than the reader's longest field
    rows = ("", f"1,0:0,{long},0x10,1,0\n", '1,0:0,"free,0x10,1,0\n')
    out = tmp_path / "out.trace"
    out.write_text("an earlier trace")
    reasons = ("no allocation", "line 2: field larger", "3 columns")
    for text, reason in zip(rows, reasons, strict=True):
        (tmp_path / "rmm.csv").write_text(header + text)
        with pytest.raises(ConvertError, match=reason):
            convert(tmp_path / "rmm.csv", out)
        assert out.read_text() == "an earlier trace"
    assert sorted(os.listdir(tmp_path)) == ["out.trace", "rmm.csv"]
    (tmp_path / "rmm.csv").write_text(header + "1,0:0,allocate,0x10,64,0\n")
    (tmp_path / "link.trace.gz").symlink_to(out)  # the file behind it is written, as gzip
    convert(tmp_path / "rmm.csv", tmp_path / "link.trace.gz")
    assert out.read_bytes()[:2] == b"\x1f\x8b" and (tmp_path / "link.trace.gz").is_symlink()
    with pytest.raises(FileFailed, match="/no/out.trace"):
        convert(tmp_path / "rmm.csv", tmp_path / "no" / "out.trace")


def test_our_own_snapshot_gives_what_was_recorded_live(tmp_path):
    recorded, snapshot, out = tmp_path / "live.trace", tmp_path / "s.pickle", tmp_path / "t.trace"
    variables = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "1GiB"}
    output(PROGRAMS / "recorded_both_ways.py", str(recorded), str(snapshot), **variables)
    result = convert(snapshot, out)
    assert result.before_history == 1
    converted = list(read_events(out))[1:]
    live = list(read_events(recorded))
    assert [(e.op, e.bytes, e.stream) for e in converted] == [
        (e.op, e.bytes, e.stream) for e in live
    ]
    assert [e.tag.split(";")[0] for e in converted] == [e.tag for e in live]
    assert len(live) == 300
