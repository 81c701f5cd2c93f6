"""Where everything lies at one moment of a replay, and the moment of the peak."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from glake import _C
from glake.trace.replay import NEVER, load_trace, policies, replay

MIB = 1 << 20
TRACES = Path(__file__).resolve().parents[1] / "traces"
PLACING = [name for name in policies() if name != "bound"] + ["gmlake:4MiB"]


def trace_of(*lines: str):
    return _C.parse_trace("t", ["\n".join(lines).encode()])


def segments_of(result):
    assert result.layout is not None
    return [
        (
            segment.name,
            [(b.offset // MIB, b.bytes // MIB, b.state, b.stream) for b in segment.blocks],
        )
        for segment in result.layout.segments
    ]


def test_every_policy_has_a_layout_or_places_nothing():
    assert policies() == ["glake", "compact", "native", "expandable", "gmlake", "bound"]
    empty = replay(trace_of("a 0 512 0"), "bound", layout_at=0)
    assert empty.layout is not None and empty.layout.segments == []


@pytest.mark.parametrize("policy", PLACING)
@pytest.mark.parametrize("name", ["gpt-varying", "fsdp-streams"])
def test_segments_hold_every_physical_byte_once(name, policy):
    trace = load_trace(TRACES / f"{name}.trace.gz")
    capacity = int(trace.peak_live_bytes * (1.4 if policy in ("native", "gmlake") else 1.02))
    options = {"complete_after": 512, "capacity": capacity, "timeline_points": trace.events}
    whole = replay(trace, policy, **options)
    peak = whole.peak_event
    assert peak is not None
    for event in {0, whole.events // 3, peak, whole.events - 1}:
        result = replay(trace, policy, layout_at=event, **options)
        layout = result.layout
        assert layout is not None and layout.event == event
        assert sum(segment.bytes for segment in layout.segments) == result.timeline.physical[event]
        live = 0
        for segment in layout.segments:
            at = 0
            for block in segment.blocks:
                assert block.offset == at and block.bytes > 0
                assert block.state in ("live", "free", "pending")
                at += block.bytes
                live += block.bytes if block.state == "live" else 0
            assert at == segment.bytes
        assert live >= result.timeline.live[event]
        assert live <= result.timeline.physical[event]


@pytest.mark.parametrize("policy", PLACING)
def test_live_blocks_are_shown_with_their_streams(policy):
    lines = [f"a {i} {(i + 3) * 4 * MIB} {i % 3}" for i in range(9)]
    result = replay(trace_of(*lines), policy, layout_at=8)
    shown = sorted(
        (size, stream)
        for _, blocks in segments_of(result)
        for _, size, state, stream in blocks
        if state == "live"
    )
    assert shown == [((i + 3) * 4, i % 3) for i in range(9)]


def test_native_segments():
    lines = [f"a 0 {30 * MIB} 0", "f 0", f"a 1 {8 * MIB} 0", f"a 2 {5 * MIB} 1", "r 1 1", "f 1"]
    result = replay(trace_of(*lines), "native", complete_after=NEVER, layout_at=5)
    assert segments_of(result) == [
        ("large", [(0, 8, "pending", 0), (8, 22, "free", 0)]),
        ("large", [(0, 5, "live", 1), (5, 15, "free", 1)]),
    ]


def test_expandable_segments_show_what_is_mapped():
    lines = [f"a {i} {20 * MIB} 0" for i in range(3)]
    lines += ["f 1", f"a 9 {40 * MIB} 1"]  # stream 1 gets the middle
    result = replay(trace_of(*lines), "expandable", capacity=80 * MIB, layout_at=4)
    assert segments_of(result) == [
        ("large", [(0, 20, "live", 0)]),
        ("large", [(0, 20, "live", 0)]),
        ("large", [(0, 40, "live", 1)]),
    ]


def test_gmlake_shows_a_stitched_block_where_its_memory_is():
    lines = [f"a 0 {300 * MIB} 0", f"a 1 {256 * MIB} 0", "f 0", "f 1", f"a 2 {512 * MIB} 0"]
    live = replay(trace_of(*lines), "gmlake", layout_at=4)
    assert segments_of(live) == [
        ("large", [(0, 300, "live", 0)]),
        ("large", [(0, 212, "live", 0), (212, 44, "free", 0)]),
    ]
    held = replay(trace_of(*lines, "r 2 1", "f 2"), "gmlake", complete_after=NEVER, layout_at=6)
    assert [blocks[0][2] for _, blocks in segments_of(held)] == ["pending", "pending"]


@pytest.mark.parametrize("policy", ["glake", "compact"])
def test_glake_shows_a_stitched_block_once(policy):
    # Blocks are live and idle in turn. A request for all idle bytes then fits only in pieces.
    lines = [f"a {i} {16 * MIB} 0" for i in range(8)] + [f"f {i}" for i in range(0, 8, 2)]
    result = replay(trace_of(*lines, f"a 9 {64 * MIB} 0"), policy, capacity=128 * MIB, layout_at=12)
    assert result.oom is None
    blocks = [block for _, segment in segments_of(result) for block in segment]
    assert sorted(size for _, size, state, _ in blocks if state == "live") == [16] * 4 + [64]
    assert sum(size for _, size, _, _ in blocks) == 128


def test_the_peak_is_the_first_event_of_its_height():
    lines = ["s 0", f"a 0 {20 * MIB} 0", f"a 1 {30 * MIB} 0", "f 0", f"a 2 {20 * MIB} 0", "f 1"]
    assert replay(trace_of(*lines), "native").peak_event == 2
    full = replay(trace_of(*lines, f"a 3 {80 * MIB} 0"), "native", capacity=64 * MIB)
    assert full.oom is not None and full.oom.event == 6
    assert full.peak_event == 5  # the last event replayed
    assert replay(trace_of("a 0 1 0"), "native", capacity=MIB).peak_event is None


def test_no_layout_where_none_was_asked_for_or_memory_ran_out_before():
    trace = trace_of(f"a 0 {20 * MIB} 0", f"a 1 {30 * MIB} 0", "f 0")
    assert replay(trace, "native").layout is None
    assert replay(trace, "native", capacity=20 * MIB, layout_at=2).layout is None
    assert replay(trace, "native", layout_at=2, find_min_capacity=True).layout is not None


@pytest.mark.parametrize("policy", PLACING)
def test_the_layout_at_the_peak_is_that_of_its_event_and_changes_no_figure(policy):
    trace = load_trace(TRACES / "gpt-varying.trace.gz")
    assert trace.peak_live_event is not None
    plain = replay(trace, policy, complete_after=512)
    peak = replay(trace, policy, complete_after=512, layout_at="peak")
    there = replay(trace, policy, complete_after=512, layout_at=trace.peak_live_event)
    assert peak.layout == there.layout and peak.layout is not None
    assert peak.layout.event == trace.peak_live_event
    unlike = {"layout": None, "host_ns_alloc": None, "host_ns_free": None}
    assert dataclasses.replace(peak, **unlike) == dataclasses.replace(plain, **unlike)


@pytest.mark.parametrize("policy", PLACING)
def test_the_layout_at_the_peak_is_what_the_refused_request_left(policy):
    # The peak of 60 MiB is served, and the 48 MiB fail. The 40 MiB freed before can be given back.
    lines = [f"a {i} {20 * MIB} {i}" for i in range(3)] + [
        "f 1",
        "f 2",
        "r 0 1",
        f"a 3 {48 * MIB} 1",
    ]
    result = replay(trace_of(*lines), policy, capacity=60 * MIB, layout_at="peak")
    assert result.oom is not None and result.layout is not None
    assert result.oom.event == result.layout.event == 6
    blocks = [block for _, segment in segments_of(result) for block in segment]
    assert sum(size for _, size, state, _ in blocks if state == "live") == 20
    if policy in ("native", "expandable"):  # these give idle memory back before they refuse
        assert sum(size for _, size, _, _ in blocks) == 20
    first = replay(trace_of(f"a 0 {80 * MIB} 0"), policy, capacity=40 * MIB, layout_at="peak")
    assert first.layout is not None and first.layout.event == 0
    assert sum(segment.bytes for segment in first.layout.segments) <= 40 * MIB


@pytest.mark.parametrize("event", [-1, 3])
def test_an_event_outside_the_trace_is_refused(event):
    with pytest.raises(ValueError, match=f"layout_at: {event} is not one of the 3 events"):
        replay(trace_of("s 0", "s 1", "a 0 1 0"), "native", layout_at=event)


def test_another_word_than_peak_is_refused():
    with pytest.raises(ValueError, match="layout_at: 'middle' is neither an event nor"):
        replay(trace_of("a 0 1 0"), "native", layout_at="middle")
