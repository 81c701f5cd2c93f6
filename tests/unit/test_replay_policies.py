"""The models of PyTorch's allocator and the engine, against results worked out by hand."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import events, lines_of

from glake import _C, errors
from glake.trace.replay import NEVER, load_trace, replay

MIB = 1 << 20
TRACES = Path(__file__).resolve().parents[1] / "traces"
MODELS = ["native", "expandable"]


def trace_of(*lines: str):
    return _C.parse_trace("t", ["\n".join(lines).encode()])


def physical(policy: str, *lines: str, **options) -> int:
    result = replay(trace_of(*lines), policy, **options)
    assert result.oom is None
    return result.peak_physical_bytes


@pytest.mark.parametrize(
    ("size", "native", "expandable"),
    [
        (1, 2 * MIB, 2 * MIB),
        (MIB, 2 * MIB, 2 * MIB),
        (MIB + 1, 20 * MIB, 20 * MIB),
        (10 * MIB - 512, 20 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 20 * MIB),
        (10 * MIB + 1, 12 * MIB, 20 * MIB),
        (21 * MIB, 22 * MIB, 40 * MIB),
    ],
)
def test_size_classes(size, native, expandable):
    assert physical("native", f"a 0 {size} 0") == native
    assert physical("expandable", f"a 0 {size} 0") == expandable


@pytest.mark.parametrize("policy", MODELS)
def test_small_and_large_requests_share_segments(policy):
    small = [f"a {i} 512 0" for i in range(4096)]
    assert physical(policy, *small) == 2 * MIB
    assert physical(policy, *small, "a 9999 1 0") == 4 * MIB
    assert physical(policy, f"a 0 {9 * MIB} 0", f"a 1 {9 * MIB} 0") == 20 * MIB


def test_native_splits_a_large_block_only_above_one_mebibyte():
    first = [f"a 0 {10 * MIB} 0", "f 0"]
    assert physical("native", *first, f"a 1 {8 * MIB} 0", f"a 2 {3 * MIB // 2} 0") == 10 * MIB
    # If exactly 1 MiB would be left, the block is handed out whole. So the block that is freed
    # behind it has no free neighbour to join.
    thirds = [f"a {i} {10 * MIB} 0" for i in (1, 2, 3)]
    lines = [f"a 0 {30 * MIB} 0", "f 0", *thirds, "f 2"]
    whole = [*lines, f"a 4 {9 * MIB} 0", "f 3", f"a 5 {11 * MIB} 0"]
    assert physical("native", *whole) == 42 * MIB
    split = [*lines, f"a 4 {9 * MIB - 512} 0", "f 3", f"a 5 {11 * MIB} 0"]
    assert physical("native", *split) == 30 * MIB


def test_expandable_splits_at_512_bytes():
    lines = [f"a 0 {20 * MIB} 0", "f 0", f"a 1 {18 * MIB} 0", f"a 2 {2 * MIB} 0"]
    assert physical("expandable", *lines) == 20 * MIB
    assert physical("expandable", *lines, f"a 3 {MIB + 1} 0") == 40 * MIB


def test_expandable_grows_what_is_idle_at_its_end():
    assert physical("expandable", f"a 0 {15 * MIB} 0", f"a 1 {25 * MIB} 0") == 40 * MIB


def test_expandable_spares_the_block_that_can_grow():
    # 8 MiB are idle at the front and 5 MiB at the growing end. The 4 MiB go to the front though the
    # end fits better, and 25 MiB then need only one more handle.
    lines = [f"a 0 {8 * MIB} 0", f"a 1 {7 * MIB} 0", "f 0", f"a 2 {4 * MIB} 0", f"a 3 {25 * MIB} 0"]
    assert physical("expandable", *lines) == 40 * MIB


def test_native_best_fit_takes_the_smallest_that_is_large_enough():
    segments = [f"a 0 {40 * MIB} 0", f"a 1 {24 * MIB} 0", "f 0", "f 1"]
    # 22 MiB goes into the 24 MiB segment and leaves the 40 MiB one whole.
    assert physical("native", *segments, f"a 2 {22 * MIB} 0", f"a 3 {40 * MIB} 0") == 64 * MIB


@pytest.mark.parametrize("policy", MODELS)
def test_neighbours_coalesce_whatever_the_order_of_frees(policy):
    for order in ("1 2 3 4", "4 3 2 1", "2 4 1 3"):
        blocks = [f"a {i} {10 * MIB} 0" for i in range(1, 5)]
        frees = [f"f {i}" for i in order.split()]
        lines = [f"a 0 {40 * MIB} 0", "f 0", *blocks, *frees, f"a 9 {40 * MIB} 0"]
        assert physical(policy, *lines) == 40 * MIB


@pytest.mark.parametrize("policy", MODELS)
def test_streams_do_not_share_idle_memory_until_it_runs_out(policy):
    lines = [f"a 0 {20 * MIB} 0", "f 0", f"a 1 {20 * MIB} 1"]
    assert physical(policy, *lines) == 40 * MIB
    assert physical(policy, *lines, capacity=20 * MIB) == 20 * MIB


def test_native_runs_out_where_holes_are_split_and_expandable_does_not():
    blocks = [f"a {i} {20 * MIB} 0" for i in range(1, 5)]
    lines = [f"a 0 {80 * MIB} 0", "f 0", *blocks, "f 1", "f 3", "s 5", f"a 9 {40 * MIB} 0"]
    native = replay(trace_of(*lines), "native", capacity=80 * MIB)
    assert native.oom is not None
    assert (native.oom.event, native.oom.step) == (9, 5)
    assert "largest idle block of this stream 20.00 MiB" in native.oom.message
    assert native.peak_live_bytes == 80 * MIB
    assert replay(trace_of(*lines), "expandable", capacity=80 * MIB).oom is None


def test_native_driver_cost():
    # A segment of 2 MiB is one cudaMalloc.
    small = replay(trace_of("a 0 1 0"), "native")
    assert (small.driver_calls, small.driver_us) == (1, pytest.approx(100))
    # One of 20 MiB is ten granules: 100 + 9 x 0.8.
    lines = [f"a 0 {20 * MIB} 0"]
    assert replay(trace_of(*lines), "native").driver_us == pytest.approx(107.2)
    # Memory is full when another stream asks. That adds a cudaFree and the same cudaMalloc again.
    lines += ["f 0", f"a 1 {20 * MIB} 1"]
    full = replay(trace_of(*lines), "native", capacity=20 * MIB)
    assert (full.driver_calls, full.driver_us) == (3, pytest.approx(2 * 107.2 + 84))


def test_every_table_prices_the_same_calls():
    """One replay gives the prices of symbols.h and of kvcached in costs.json, added by hand."""
    lines = ["s 0", f"a 0 {2 * MIB} 0", f"a 1 {40 * MIB} 0"]
    for policy in ("glake", "expandable", "native"):
        both = replay(trace_of(*lines), policy)
        assert list(both.by_costs) == ["published", "a100-kvcached"] and both.costs == "published"
        assert both.by_costs["published"].driver_us == both.driver_us > 0
        alone = replay(trace_of(*lines), policy, costs=["a100-kvcached"])
        assert alone.costs == "a100-kvcached" and alone.driver_calls == both.driver_calls
        dear = both.by_costs["a100-kvcached"]
        assert alone.by_costs == {"a100-kvcached": dear}
        assert alone.steps[0].driver_us == pytest.approx(dear.driver_us)
        assert alone.growth_us_per_step == pytest.approx(dear.growth_us)
    # Two handles of 20 MiB. kvcached did not time cudaMalloc, so both tables price it alike.
    grown = replay(trace_of(f"a 0 {40 * MIB} 0"), "expandable").by_costs["a100-kvcached"]
    assert grown.driver_us == pytest.approx(19 + 2 * (193 + 9 * 8) + 2 * 1.45 + 36 + 19 * 1.9)
    assert grown.growth_us == pytest.approx(grown.driver_us - 19)
    native = replay(trace_of(f"a 0 {40 * MIB} 0"), "native").by_costs
    assert native["published"].driver_us == native["a100-kvcached"].driver_us


def test_a_further_mapping_has_a_price_of_its_own(monkeypatch, tmp_path):
    calls = {"cuMemAddressReserve": [0, 0], "cuMemCreate": [0, 0], "cuMemMap": [0, 0],
             "cuMemRelease": [0, 0], "cuMemSetAccess": [20, 0.5, 10],
             "cuMemUnmap": [30, 1, 7]}  # fmt: skip
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"default": "gpu", "devices": {"gpu": {"calls": calls}}}))
    monkeypatch.setenv("GLAKE_SIM_COST_FILE", str(file))

    def driver_us(policy, *lines, capacity=None):
        return replay(
            trace_of(*lines), policy, capacity=capacity, complete_after=0, costs=["gpu"]
        ).driver_us

    two = f"a 0 {40 * MIB} 0"
    # Two handles of 20 MiB. The first granule has the price of a call, the other handle's first
    # that of a further mapping.
    assert driver_us("expandable", two) == pytest.approx(20 + 18 * 0.5 + 10)
    # Twenty granules, each a mapping of its own.
    assert driver_us("glake", two) == pytest.approx(20 + 19 * 10)
    grown = replay(trace_of(two), "glake", costs=["gpu"])
    assert grown.growth_us == pytest.approx(grown.driver_us)
    # Expandable unmaps each handle by a call of its own.
    lines = [two, "f 0", f"a 1 {20 * MIB} 1"]
    again = 20 + 9 * 0.5
    assert driver_us("expandable", *lines, capacity=40 * MIB) == pytest.approx(
        20 + 18 * 0.5 + 10 + 2 * (30 + 9) + again
    )
    # GMLake grants each granule by itself and unmaps a whole block at once.
    taken = driver_us("gmlake", *lines, capacity=40 * MIB)
    assert taken == pytest.approx((20 + 10) * 20 + 30 + 19 * 7)


def test_a_table_there_is_not():
    with pytest.raises(errors.ReplayError, match="no costs of tpu.*published.*a100-kvcached"):
        replay(trace_of("a 0 1 0"), "bound", costs=["published", "tpu"])
    with pytest.raises(ValueError, match="at least one table"):
        replay(trace_of("a 0 1 0"), "bound", costs=[])


def test_the_simulators_own_table_comes_first(monkeypatch):
    monkeypatch.setenv("GLAKE_SIM_COSTS", "a100-kvcached")
    result = replay(trace_of("a 0 1 0"), "native")
    assert result.costs == "a100-kvcached" and list(result.by_costs)[1:] == ["published"]


def test_expandable_driver_cost():
    # Two handles: reserve 2, create 2 x 39.8, map 2 x 2, one access over twenty granules.
    lines = [f"a 0 {40 * MIB} 0"]
    grown = 2 * 39.8 + 2 * 2 + 38 + 19 * 2
    first = replay(trace_of(*lines), "expandable")
    assert (first.driver_calls, first.driver_us) == (6, pytest.approx(2 + grown))
    # Another stream asks: reserve, a create that is refused, unmap and release two handles, grow.
    lines += ["f 0", f"a 1 {40 * MIB} 1"]
    full = replay(trace_of(*lines), "expandable", capacity=40 * MIB)
    assert full.driver_calls == 6 + 2 + 4 + 5
    assert full.driver_us == pytest.approx(2 * (2 + grown) + 39.8 + 2 * (43 + 32))
    assert full.stream_waits == 0  # work completes at once
    assert replay(trace_of(*lines), "expandable", capacity=40 * MIB, complete_after=5).oom is None


def test_growth_is_what_brings_memory_to_a_new_height():
    # Memory is full when another stream asks. What is given back and taken again is no growth.
    lines = [f"a 0 {20 * MIB} 0", "s 0", "f 0", f"a 1 {20 * MIB} 1"]
    full = replay(trace_of(*lines), "native", capacity=20 * MIB)
    assert full.growth_us == pytest.approx(107.2) and full.driver_us > 2 * 107.2
    assert full.steps[0].growth_us == 0 < full.steps[0].driver_us


@pytest.mark.parametrize("policy", MODELS)
def test_record_stream_holds_a_block_back_until_the_work_completes(policy):
    lines = [f"a 0 {20 * MIB} 0", "r 0 1", "r 0 1", "f 0", f"a 1 {20 * MIB} 0"]
    assert physical(policy, *lines, complete_after=0) == 20 * MIB
    assert physical(policy, *lines, complete_after=2) == 40 * MIB
    assert physical(policy, *lines, complete_after=NEVER) == 40 * MIB
    later = [*lines[:4], "s 0", "s 1", lines[4]]
    assert physical(policy, *later, complete_after=3) == 20 * MIB
    assert physical(policy, *later, complete_after=4) == 40 * MIB
    waited = replay(trace_of(*lines), policy, capacity=20 * MIB, complete_after=NEVER)
    assert waited.oom is None
    assert waited.stream_waits >= 1


@pytest.mark.parametrize("policy", MODELS)
def test_recording_its_own_stream_changes_nothing(policy):
    lines = [f"a 0 {20 * MIB} 3", "r 0 3", "f 0", f"a 1 {20 * MIB} 3"]
    assert physical(policy, *lines, complete_after=NEVER) == 20 * MIB


def test_per_step_figures_speak_of_the_second_half():
    lines = ["a 0 1 0"]
    for step in range(5):
        lines += [f"s {step}"]
        if step in (1, 3):  # these steps take one more segment
            lines += [f"a {step + 10} {20 * MIB} 0"]
    result = replay(trace_of(*lines), "native")
    assert [each.driver_calls for each in result.steps] == [0, 1, 0, 1, 0]
    assert [each.growth_us for each in result.steps] == pytest.approx([0, 107.2, 0, 107.2, 0])
    assert result.driver_calls == 3
    assert result.driver_calls_per_step == pytest.approx(1 / 3)  # of steps 2, 3 and 4
    assert result.driver_us_per_step == pytest.approx(107.2 / 3)
    unfinished = replay(trace_of(*lines), "native", capacity=24 * MIB)
    assert unfinished.oom is not None and unfinished.oom.step == 3
    assert [each.step for each in unfinished.steps] == [0, 1, 2]
    assert replay(trace_of("a 0 1 0"), "native").driver_calls_per_step is None


def test_utilisation_and_timeline():
    lines = [f"a 0 {10 * MIB} 0", f"a 1 {10 * MIB} 0", "f 1", "f 0"]
    result = replay(trace_of(*lines), "native")
    assert result.utilisation == 1.0
    assert result.time_avg_utilisation == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    assert result.timeline.event == [0, 1, 2, 3]
    assert result.timeline.live == [10 * MIB, 20 * MIB, 10 * MIB, 0]
    coarse = replay(trace_of(*lines), "native", timeline_points=2).timeline
    assert (coarse.event, coarse.live) == ([0, 2], [20 * MIB, 10 * MIB])
    assert coarse.physical == [20 * MIB, 20 * MIB]


def test_nothing_fits_at_event_zero():
    result = replay(trace_of(f"a 0 {20 * MIB} 0"), "native", capacity=MIB)
    assert result.oom is not None and (result.oom.event, result.oom.step) == (0, None)
    assert (result.events, result.utilisation, result.host_ns_free) == (0, None, None)


@pytest.mark.parametrize("policy", MODELS)
@pytest.mark.parametrize("name", ["gpt-fixed", "gpt-varying", "fsdp-streams"])
def test_smallest_capacity_is_a_boundary(name, policy):
    trace = load_trace(TRACES / f"{name}.trace.gz")
    result = replay(trace, policy, complete_after=512, find_min_capacity=True)
    capacity = result.min_capacity_bytes
    assert capacity is not None
    assert trace.peak_live_bytes <= capacity <= result.peak_physical_bytes
    assert replay(trace, policy, complete_after=512, capacity=capacity).oom is None
    below = int(capacity * 0.998)
    assert replay(trace, policy, complete_after=512, capacity=below).oom is not None


def test_fixed_shapes_cost_no_driver_call_once_warm():
    result = replay(load_trace(TRACES / "gpt-fixed.trace.gz"), "native")
    assert result.steps[0].driver_calls > 0
    assert all(each.driver_calls == 0 for each in result.steps[3:])


def test_a_replay_that_fails_at_once_has_no_utilisation():
    result = replay(trace_of("a 0 50000000 0", "s 1"), "native", capacity=20 << 20)
    assert (result.events, result.peak_physical_bytes, result.utilisation) == (0, 0, None)


def test_unknown_policy_and_bad_options():
    trace = trace_of("a 0 1 0")
    with pytest.raises(errors.ReplayError, match="unknown policy 'best'; known: glake"):
        replay(trace, "best")
    with pytest.raises(ValueError, match="complete_after"):
        replay(trace, "native", complete_after=-2)


def test_progress_is_told_and_may_stop_the_replay():
    shares: list[float] = []
    trace = load_trace(TRACES / "gpt-fixed.trace.gz")
    replay(trace, "native", progress=shares.append)
    assert shares[0] == 0.0

    def stop(share: float) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        replay(trace, "native", progress=stop)


@pytest.mark.parametrize("policy", ["native", "glake"])
def test_control_c_ends_a_bisection_at_once(policy):
    pairs = (f"a {i} {1 + i % 97 * MIB} 0\nf {i}\n" for i in range(100_000))
    trace = _C.parse_trace(
        "t", [f"a 999999 {MIB} 0\n".encode(), *(each.encode() for each in pairs)]
    )
    start = time.process_time()
    whole = replay(trace, policy)
    once = time.process_time() - start
    interrupt = threading.Timer(once / 4, os.kill, (os.getpid(), signal.SIGINT))
    # A process that a shell starts in the background ignores SIGINT, and Python keeps it so.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        start = time.process_time()
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            replay(trace, policy, find_min_capacity=True)  # about ten replays
        assert time.process_time() - start < 8 * once  # other processes' work is not counted
    finally:
        signal.signal(signal.SIGINT, handler)
    assert replay(trace, policy).peak_physical_bytes == whole.peak_physical_bytes


@given(
    plan=st.lists(events(streams=3), min_size=1, max_size=120),
    policy=st.sampled_from(MODELS),
    complete_after=st.sampled_from([0, 3, NEVER]),
    capacity=st.sampled_from([None, 64 * MIB, 200 * MIB]),
)
@settings(max_examples=200, deadline=None)
def test_books_add_up_on_any_trace(plan, policy, complete_after, capacity):
    trace = trace_of(*lines_of(plan))
    # The policy checks its own books at the end and raises ReplayError if they do not add up.
    result = replay(trace, policy, complete_after=complete_after, capacity=capacity)
    for held, taken in zip(result.timeline.live, result.timeline.physical, strict=True):
        assert held <= taken
    if capacity is None:
        assert result.oom is None
        assert result.peak_live_bytes == trace.peak_live_bytes
    else:
        assert result.peak_physical_bytes <= capacity
