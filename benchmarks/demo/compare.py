"""Replays the recorded job under each allocation policy at one capacity, and tabulates it.

Every policy gets the same trace and the same capacity. `native` and `expandable` are models of
PyTorch's caching allocator; `glake` is glake's own core, on a simulated driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from glake.trace.replay import ReplayResult, load_trace, replay
from glake.units import size

POLICIES = {
    "native": "PyTorch's allocator",
    "expandable": "PyTorch's with expandable segments",
    "glake": "this library",
}
# In a job of 0.3 GiB a few percent of the bytes are in granules that are partly in use. glake needs
# 1.035 to 1.058 x, and native 1.12 x and more. The figures depend on the text, which is this
# Python's library.
HEADROOM = 1.08
GRANULE = 2 << 20
COMPLETE_AFTER = 512  # events until work is complete, by default of `glake replay`


@dataclass(frozen=True)
class Outcome:
    """A policy's result at the capacity. Where that is out of memory, also one without limit."""

    result: ReplayResult
    unlimited: ReplayResult | None


def capacity_for(peak_live_bytes: int) -> int:
    """The demo's rule: HEADROOM times the peak live bytes, rounded up to whole granules."""
    return -(-int(peak_live_bytes * HEADROOM) // GRANULE) * GRANULE


def compare(trace_path: Path, capacity: int) -> list[Outcome]:
    """Replays the trace under each of POLICIES, and finds the smallest capacity of each."""
    trace = load_trace(trace_path)
    outcomes = []
    for policy in POLICIES:
        found = replay(
            trace,
            policy,
            capacity=capacity,
            complete_after=COMPLETE_AFTER,
            find_min_capacity=True,
        )
        free = replay(trace, policy, complete_after=COMPLETE_AFTER) if found.oom else None
        outcomes.append(Outcome(found, free))
    return outcomes


def print_table(outcomes: list[Outcome], console: Console) -> None:
    """Prints the table, and under it where policies ran out of memory."""
    live = outcomes[0].result.trace_peak_live_bytes
    table = Table(
        title=f"The recorded job, replayed: peak live {size(live)}",
        caption="One trace for all. native and expandable (with expandable segments)\n"
        "are models of PyTorch's caching allocator.",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for heading in (
        "capacity",
        "fits?",
        "peak\nphysical",
        "utili-\nsation",
        "needs\nat least",
        "driver\ncalls\n/ step",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in outcomes:
        table.add_row(*_row(each.result))
    console.print(table)
    for each in outcomes:
        if (oom := each.result.oom) is not None:
            step = "in set-up" if oom.step is None else f"in step {oom.step}"
            console.print(f"[red]{each.result.policy}[/] ran out {step}: its figures end there.")


def _row(found: ReplayResult) -> list[str]:
    needs, calls = found.min_capacity_bytes, found.driver_calls_per_step
    live = found.trace_peak_live_bytes
    return [
        found.policy,
        "unlimited" if found.capacity_bytes is None else size(found.capacity_bytes),
        "[green]yes[/]" if found.oom is None else "[red]no[/]",
        size(found.peak_physical_bytes),
        "-" if found.utilisation is None else f"{found.utilisation:.1%}",
        "-" if needs is None else f"{size(needs)}\n[dim]{needs / live:.3f} x live[/]",
        "-" if calls is None else f"{calls:,.1f}",
    ]


def as_json(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The table's figures in bytes, one object for each policy."""
    rows = []
    for found in (each.result for each in outcomes):
        rows.append(
            {
                "policy": found.policy,
                "capacity_bytes": found.capacity_bytes,
                "fits": found.oom is None,
                "oom_step": found.oom.step if found.oom else None,
                "peak_live_bytes": found.trace_peak_live_bytes,
                "peak_physical_bytes": found.peak_physical_bytes,
                "utilisation": found.utilisation,
                "min_capacity_bytes": found.min_capacity_bytes,
                "driver_calls_per_step": found.driver_calls_per_step,
            }
        )
    return rows
