"""The model of GMLake and the lower bound, against results worked out by hand.

A segment is as long as the request it is made for. So idle blocks of different requests are never
neighbours, and only a stitched block can serve a longer request. Policy `gmlake` without a size
stitches for requests of 512 MiB or more.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import events, lines_of

from glake import _C, errors
from glake.trace.replay import NEVER, replay

MIB = 1 << 20
GIB = 1 << 30
# Microseconds of one call over one granule, by simcuda's table.
CREATE, MAP, ACCESS, UNMAP, RELEASE, RESERVE = 29, 2, 38, 34, 23, 2


def trace_of(*lines: str):
    return _C.parse_trace("t", ["\n".join(lines).encode()])


def run(*lines: str, policy: str = "gmlake", **options):
    return replay(trace_of(*lines), policy, **options)


def physical(*lines: str, policy: str = "gmlake", **options) -> int:
    result = run(*lines, policy=policy, **options)
    assert result.oom is None
    return result.peak_physical_bytes // MIB


def idle(*sizes: int) -> list[str]:
    """Blocks of `sizes` MiB, numbered from 0, all freed."""
    return [f"a {i} {size * MIB} 0" for i, size in enumerate(sizes)] + [
        f"f {i}" for i in range(len(sizes))
    ]


def alloc(block: int, mib: int, stream: int = 0) -> str:
    return f"a {block} {mib * MIB} {stream}"


@pytest.mark.parametrize(
    ("size", "segment"),
    [(1, 2), (MIB, 2), (MIB + 1, 20), (8 * MIB, 20), (8 * MIB + 1, 10), (10 * MIB + 1, 12)],
)
def test_size_classes(size, segment):
    assert physical(f"a 0 {size} 0") == segment


def test_large_requests_are_whole_granules():
    # Ten fit into a segment, in which PyTorch's allocator would put nineteen.
    lines = [f"a {i} {MIB + 1} 0" for i in range(11)]
    assert physical(*lines[:10]) == 20
    assert physical(*lines) == 40
    assert physical(*lines, policy="native") == 20


def test_small_requests_share_two_mebibytes():
    small = [f"a {i} 512 0" for i in range(4096)]
    assert physical(*small) == 2
    assert physical(*small, "a 9999 1 0") == 4


def test_idle_blocks_are_stitched_from_the_limit_on():
    assert physical(*idle(256, 256), alloc(9, 512)) == 512
    assert physical(*idle(256, 256), alloc(9, 510)) == 512 + 510
    assert physical(*idle(256, 256), alloc(9, 510), policy="gmlake:510MiB") == 512
    # Too little is idle. All 512 MiB are new, as idle blocks are not topped up.
    assert physical(*idle(256, 254), alloc(9, 512)) == 510 + 512


def test_one_idle_block_is_split_and_joined_again():
    lines = [*idle(600), alloc(1, 200), alloc(2, 400), "f 1", "f 2", alloc(3, 600)]
    result = run(*lines)
    assert result.peak_physical_bytes == 600 * MIB
    assert result.driver_calls == 1 + 3 * 300  # those of the first block alone


def test_largest_blocks_are_taken_first_and_the_last_is_cut():
    # 512 takes the 300 and 212 of the 256. 44 and 100 stay idle.
    lines = [*idle(300, 256, 100), alloc(9, 512)]
    assert physical(*lines, alloc(8, 44), alloc(7, 100)) == 656
    assert physical(*lines, alloc(8, 144)) == 656 + 144


def test_a_stitched_block_gives_its_pieces_back():
    lines = [*idle(300, 256), alloc(9, 512), "f 9"]
    assert physical(*lines, alloc(8, 300), alloc(7, 256)) == 556


def test_stitching_costs_a_map_and_an_access_for_each_granule():
    grown = 256 * (CREATE + MAP + ACCESS) + 2 * RESERVE
    first = run(*idle(256, 256))
    assert (first.driver_calls, first.driver_us) == (2 + 3 * 256, pytest.approx(grown))
    stitched = run(*idle(256, 256), alloc(9, 512))
    assert stitched.driver_calls - first.driver_calls == 1 + 2 * 256
    assert stitched.driver_us - first.driver_us == pytest.approx(256 * (MAP + ACCESS) + RESERVE)


def test_an_idle_range_is_used_again_without_a_call():
    once = [*idle(256, 256), alloc(9, 512), "f 9"]
    calls = run(*once).driver_calls
    assert run(*once, alloc(8, 512), "f 8", alloc(7, 512)).driver_calls == calls
    # A shorter request takes the front of the range (256 of one block, 104 of the other), even if
    # it is too short to be stitched for. The rest stays idle.
    again = run(*once, alloc(8, 360), alloc(7, 152))
    assert (again.driver_calls, again.peak_physical_bytes) == (calls, 512 * MIB)


def test_best_fit_comes_before_an_idle_range():
    lines = [*idle(256, 256), alloc(9, 512), "f 9", alloc(8, 200)]
    # The 200 were taken from one block, so the other one is still whole.
    assert physical(*lines, alloc(7, 256)) == 512


def test_a_range_is_busy_while_any_of_its_memory_is():
    lines = [*idle(256, 256), alloc(9, 512), "f 9", alloc(8, 2)]
    assert physical(*lines, alloc(7, 512)) == 512 + 512
    assert physical(*lines, "f 8", alloc(7, 512)) == 512


def test_a_range_over_ten_times_the_request_is_left_alone():
    lines = [*idle(*[32] * 16), alloc(99, 512), "f 99"]
    assert physical(*lines, alloc(98, 50)) == 512 + 50
    assert physical(*lines, alloc(98, 52)) == 512


def test_the_smallest_range_that_fits_is_taken():
    made = [alloc(i, 256) for i in range(4)]
    lines = [*made, "f 0", "f 1", alloc(4, 512), "f 2", "f 3", "f 4", alloc(5, 1024), "f 5"]
    calls = run(*lines).driver_calls
    # The first 512 takes the range of 512. The second is newly stitched of the other half.
    after = run(*lines, alloc(6, 512), alloc(7, 512))
    assert after.driver_calls - calls == 1 + 2 * 256
    assert after.peak_physical_bytes == GIB


def test_streams_share_neither_blocks_nor_ranges():
    assert physical(*idle(256, 256), alloc(9, 512, stream=1)) == 1024
    lines = [*idle(256, 256), alloc(9, 512), "f 9", alloc(8, 512, stream=1)]
    assert physical(*lines) == 1024


def test_idle_segments_are_given_back_when_growth_fails():
    lines = [*idle(256, 256), alloc(9, 300, stream=1)]
    assert physical(*lines) == 812
    result = run(*lines, capacity=600 * MIB)
    assert result.oom is None
    assert result.peak_physical_bytes == 512 * MIB
    # Each attempt creates as many granules as there is room for, and is then refused.
    refused = 44 + 1 + 44
    grown = 2 * (1 + 3 * 128)
    assert result.driver_calls == grown + refused + 2 * (1 + 128) + 1 + 3 * 150


def test_a_range_goes_with_the_memory_under_it():
    lines = [*idle(256, 256), alloc(9, 512), "f 9", alloc(8, 300, stream=1), "f 8"]
    # If the range were still there, it would serve 512 without new memory.
    result = run(*lines, alloc(7, 512), capacity=600 * MIB)
    assert result.oom is None
    assert result.peak_physical_bytes == 512 * MIB
    # One call unmapped each segment and each range, and one released each granule.
    refused = [44, 150]
    calls = 2 * (1 + 3 * 128) + (1 + 2 * 256)
    calls += 2 * refused[0] + 1 + 2 * (1 + 128) + 1 + (1 + 3 * 150)
    calls += 2 * refused[1] + 1 + (1 + 150) + (1 + 3 * 256)
    assert result.driver_calls == calls


def test_a_range_in_use_whose_idle_end_is_given_back_is_not_used_again():
    # 302 takes 300 + 2 of the range 300 + 112 + 100. Stream 1 then gets the idle 100 at its end.
    lines = [*idle(300, 112, 100), alloc(9, 512), "f 9", alloc(8, 302), alloc(7, 100, stream=1)]
    lines += ["f 8"]
    before = run(*lines[:-1], capacity=512 * MIB)
    freed = run(*lines, capacity=512 * MIB)
    assert before.oom is None and freed.oom is None
    assert freed.driver_calls == before.driver_calls + 1  # the range is unmapped
    result = run(*lines, alloc(6, 512), capacity=512 * MIB)
    assert result.oom is not None and result.oom.event == len(lines)
    assert run(*lines, "f 7", alloc(6, 512), capacity=512 * MIB).oom is None


def test_ranges_are_dropped_when_a_thousand_gibibytes_were_stitched():
    def stitched(block: int, gib: int) -> list[str]:
        return [f"a {block} {gib * GIB} 0", f"f {block}"]

    lines = [*idle(300 * 1024, 300 * 1024), *stitched(9, 500), *stitched(8, 499)]
    within = run(*lines)
    # The smaller request found the longer range idle, so only one range was stitched.
    assert within.driver_calls == 2 * (1 + 3 * 150 * 1024) + 1 + 2 * 250 * 1024
    more = run(*lines, *stitched(7, 501))
    assert more.driver_calls - within.driver_calls == 1 + 2 * 501 * 512 + 1
    never = run(*lines, *stitched(7, 501), complete_after=NEVER)
    assert never.driver_calls == more.driver_calls - 1


def test_record_stream_holds_a_stitched_block_back():
    lines = [*idle(256, 256), alloc(9, 512), "r 9 1", "f 9", alloc(8, 512)]
    assert physical(*lines, complete_after=0) == 512
    assert physical(*lines, complete_after=NEVER) == 1024
    waited = run(*lines, complete_after=NEVER, capacity=512 * MIB)
    assert waited.oom is None
    assert waited.stream_waits == 1


@pytest.mark.parametrize(
    "name", ["gmlake:", "gmlake:0", "gmlake:1MiB", "gmlake:-2MiB", "gmlake:64MB", "gmlake:2PiB"]
)
def test_a_bad_limit_is_named(name):
    with pytest.raises(errors.ReplayError, match=f"policy '{name}': .*gmlake:64MiB"):
        run("a 0 1 0", policy=name)
    with pytest.raises(errors.ReplayError):
        _C.require_policy(name)


@pytest.mark.parametrize(
    "name", ["gmlake:67108864", "gmlake:64MiB", "gmlake:65536KiB", "gmlake:.0625GiB"]
)
def test_a_limit_has_a_unit_or_is_bytes(name):
    assert physical(*idle(32, 32), alloc(9, 64), policy=name) == 64
    assert physical(*idle(32, 32), alloc(9, 62), policy=name) == 126


@given(
    plan=st.lists(events(streams=2), min_size=1, max_size=150),
    complete_after=st.sampled_from([0, 3, NEVER]),
    capacity=st.sampled_from([None, 64 * MIB, 200 * MIB]),
)
@settings(max_examples=150, deadline=None)
def test_books_add_up_on_any_trace(plan, complete_after, capacity):
    lines = lines_of(plan, scales=3)
    # The policy checks its own books at the end and raises ReplayError if they do not add up.
    result = run(
        *lines, policy="gmlake:4MiB", complete_after=complete_after, capacity=capacity, layout_at=0
    )
    bound = run(*lines, policy="bound", capacity=capacity)
    assert capacity is not None or (result.oom is None and bound.oom is None)
    for held, taken in zip(bound.timeline.physical, result.timeline.physical, strict=False):
        assert held <= taken
    assert result.oom is not None or bound.oom is None


def test_the_bound_rounds_each_block_to_512_bytes_and_all_of_them_to_granules_once():
    assert physical("a 0 1 0", policy="bound") == 2
    lines = [f"a {i} 513 0" for i in range(2048)]  # 2 MiB as 512-byte units
    assert physical(*lines, policy="bound") == 2
    assert physical(*lines, "a 9999 1 1", policy="bound") == 4
    assert physical(*lines, "f 0", "a 9999 1024 1", policy="bound") == 2


def test_the_bound_fits_from_itself_on_and_makes_no_call():
    lines = [alloc(0, 5), alloc(1, 6), "f 0", alloc(2, 3), "r 2 1", "f 2"]
    result = run(*lines, policy="bound", find_min_capacity=True, complete_after=NEVER)
    assert result.peak_physical_bytes == result.min_capacity_bytes == 12 * MIB
    assert (result.driver_calls, result.driver_us, result.stream_waits) == (0, 0, 0)
    assert run(*lines, policy="bound", capacity=12 * MIB).oom is None
    short = run(*lines, policy="bound", capacity=12 * MIB - 1)
    assert short.oom is not None and short.oom.event == 1
    assert "at least 12.00 MiB" in short.oom.message
