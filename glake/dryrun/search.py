"""Finds the smallest GPU memory with which a job runs, by running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from glake.config import GRANULE
from glake.dryrun.launch import Launch, run_once
from glake.dryrun.result import DryRun
from glake.units import size

PRECISION = 0.002  # how exactly a search finds the smallest capacity, as a share of it
_ROOMY = 4 << 40  # bytes: more than a job needs; phantom memory takes nothing


def smallest_capacity(
    launch: Launch, made: DryRun, tell: Callable[[str], None], precision: float = PRECISION
) -> DryRun:
    """Adds to the run `made` the smallest capacity: bytes of the device, including CUDA's share.

    Bisection finds it. The job ran with this capacity. One that is smaller by at most `precision`
    of it, or by one granule, was too small.

    It is assumed that a job which runs with some memory also runs with more. A job that asks how
    much memory there is, and takes a share of it, has no definite smallest capacity.
    """
    quiet = replace(launch, quiet=True, keep=None)
    needed = made
    if made.oom is not None:
        tell(f"{made.allocator}: running the job with room to spare")
        needed = run_once(_with_memory(quiet, _ROOMY), made.allocator)
    low = _rounded(needed.peak_allocated_bytes + needed.outside_bytes) - GRANULE
    high = _rounded(needed.peak_reserved_bytes + needed.outside_bytes)
    # If fragmentation is low, the answer is near the live bytes. So the smallest capacities are
    # tried first; runs that fail are short. If `near` is enough, it differs from `low` by less than
    # `precision`, and nothing is left to bisect. After the next capacity two halvings are enough.
    near = _rounded(int(low * (1 + 0.9 * precision)))
    further = {_rounded(int(low * (1 + 4.8 * precision))), high, _rounded(int(high * 1.01))}
    tried = [near, *sorted(capacity for capacity in further if capacity > near)]
    while not _runs(quiet, made.allocator, tried[0], tell):
        low = tried.pop(0)
        # This bound is more than was reserved, because libraries take memory of their own (cuBLAS),
        # and sizes are rounded.
        tried = tried or [_rounded(int(low * 1.05))]
    high = tried[0]
    while high - low > max(GRANULE, precision * high):
        middle = _rounded((low + high) // 2)
        if _runs(quiet, made.allocator, middle, tell):
            high = middle
        else:
            low = middle
    return replace(made, smallest_capacity_bytes=high)


def _runs(launch: Launch, allocator: str, capacity: int, tell: Callable[[str], None]) -> bool:
    fits = run_once(_with_memory(launch, capacity), allocator).fits
    tell(f"{allocator}: {'runs' if fits else 'does not run'} with {size(capacity)}")
    return fits


def _with_memory(launch: Launch, capacity: int) -> Launch:
    return replace(launch, machine=replace(launch.machine, memory_bytes=capacity))


def _rounded(capacity: int) -> int:
    return -(-capacity // GRANULE) * GRANULE
