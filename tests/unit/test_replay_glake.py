"""The allocator core itself under replay, on the simulated driver in phantom mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from glake import _C, errors
from glake.trace.replay import NEVER, load_trace, replay

MIB = 1 << 20
TRACES = Path(__file__).resolve().parents[1] / "traces"
NAMES = ["gpt-fixed", "gpt-varying", "fsdp-streams"]
CORES = ["glake", "compact"]


@pytest.fixture(scope="module", params=NAMES)
def trace(request):
    return load_trace(TRACES / f"{request.param}.trace.gz")


@pytest.mark.parametrize("complete_after", [0, 512, NEVER])
@pytest.mark.parametrize("policy", CORES)
def test_runs_without_limit_and_keeps_its_books(trace, policy, complete_after):
    # A violation in the simulator's ledger raises ReplayError, and so do books that do not add up.
    result = replay(trace, policy, complete_after=complete_after)
    assert result.oom is None
    assert result.peak_live_bytes == trace.peak_live_bytes
    for live, physical in zip(result.timeline.live, result.timeline.physical, strict=True):
        assert live <= physical
    assert result.driver_calls > 0 and result.driver_us > 0


@pytest.mark.parametrize("policy", CORES)
def test_fits_where_the_native_policy_does_not(policy):
    trace = load_trace(TRACES / "gpt-varying.trace.gz")
    capacity = int(trace.peak_live_bytes * 1.05)
    assert replay(trace, "native", capacity=capacity, complete_after=512).oom is not None
    result = replay(trace, policy, capacity=capacity, complete_after=512)
    assert result.oom is None
    assert result.peak_physical_bytes <= capacity


def test_fixed_shapes_cost_no_driver_call_from_the_fourth_step():
    trace = load_trace(TRACES / "gpt-fixed.trace.gz")
    capacity = int(trace.peak_live_bytes * 1.05)
    result = replay(trace, "glake", capacity=capacity, complete_after=512)
    assert result.oom is None
    assert [each.driver_calls for each in result.steps[3:]] == [0] * len(result.steps[3:])


@pytest.mark.parametrize("policy", CORES)
def test_out_of_memory_is_a_result_and_the_next_replay_starts_fresh(policy):
    trace = _C.parse_trace("t", [f"s 4\na 0 {32 * MIB} 0\na 1 {64 * MIB} 1\n".encode()])
    first = replay(trace, policy, capacity=64 * MIB)
    assert first.oom is not None
    assert (first.oom.event, first.oom.step) == (2, 4)
    assert first.oom.message
    again = replay(trace, policy, capacity=128 * MIB)
    assert again.oom is None
    assert again.peak_physical_bytes == 96 * MIB  # it does not grow ahead of need


def test_what_is_free_is_used_before_more_is_taken():
    """Once a sixteenth more is held than was ever live, free granules are stitched."""
    lines, live = [], list(range(64))
    lines += [f"a {i} {8 * MIB} 0" for i in live]
    lines += [f"f {i}" for i in live[::2]]  # 32 holes of 8 MiB, 512 MiB held at most before
    lines += [f"a {100 + i} {12 * MIB} 0" for i in range(16)]
    trace = _C.parse_trace("t", ["\n".join([*lines, ""]).encode()])
    result = replay(trace, "glake")
    assert result.peak_physical_bytes <= 512 * MIB * 17 // 16 + 12 * MIB


def test_smallest_capacity_is_found():
    trace = _C.parse_trace("t", [f"a 0 {64 * MIB} 0\nf 0\na 1 {32 * MIB} 0\n".encode()])
    result = replay(trace, "glake", find_min_capacity=True)
    assert result.min_capacity_bytes is not None
    assert 64 * MIB <= result.min_capacity_bytes <= 64 * MIB * 1.001


def test_options_are_put_back():
    trace = _C.parse_trace("t", [b"a 0 512 0\n"])
    before = _C.options()
    replay(trace, "compact")
    assert _C.options() == before


def test_refused_while_the_process_holds_glake_memory():
    trace = _C.parse_trace("t", [b"a 0 512 0\n"])
    simulator = Path(_C.__file__).parent / "lib" / "libsimcuda.so"
    options = {each["name"]: each["value"] for each in _C.options()}
    _C.configure("driver", str(simulator))
    block = _C.malloc(4096)
    try:
        with pytest.raises(errors.ReplayError, match="needs the allocator of this process"):
            replay(trace, "glake")
        assert _C.block_info(block)[0] == 4096
    finally:
        _C.free(block)
        _C.shutdown()
        _C.configure("driver", options["driver"])
    assert replay(trace, "glake").oom is None


def test_a_missing_simulator_is_named(tmp_path):
    trace = _C.parse_trace("t", [b"a 0 512 0\n"])
    with pytest.raises(errors.ReplayError, match="cannot open the simulator"):
        replay(trace, "glake", driver_path=str(tmp_path / "libnone.so"))


def test_a_library_that_is_no_simulator_is_refused():
    trace = _C.parse_trace("t", [b"a 0 512 0\n"])
    with pytest.raises(errors.ReplayError, match="lacks simcuda_configure"):
        replay(trace, "glake", driver_path=_C.__file__)
