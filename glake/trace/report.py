"""Replay results as a table, as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glake.trace.replay import ReplayResult

_GIB = 1 << 30
_MOST_MARKS = 250
_MOST_NAMES = 12


def to_json(result: ReplayResult) -> dict[str, Any]:
    """One JSON object per trace and policy: every field but the timeline and the layout."""
    fields = dataclasses.asdict(dataclasses.replace(result, layout=None))
    del fields["timeline"], fields["layout"]
    return fields


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / _GIB:.2f}"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _min_capacity(result: ReplayResult) -> str:
    if result.min_capacity_bytes is None or not result.trace_peak_live_bytes:
        return "-"
    times = result.min_capacity_bytes / result.trace_peak_live_bytes
    return f"{_gib(result.min_capacity_bytes)} ({times:.3f}x)"


def _table(trace: str, results: Sequence[ReplayResult]) -> Table:
    live = results[0].trace_peak_live_bytes
    capacity = results[0].capacity_bytes
    limit = "unlimited" if capacity is None else f"{_gib(capacity)} GiB"
    after = results[0].complete_after
    pace = "never" if after < 0 else f"after {after} events"
    title = (
        f"{os.path.basename(trace)}: peak live {_gib(live)} GiB, "
        f"capacity {limit}, work completes {pace}"
    )
    table = Table(title=escape(title), title_justify="left")
    table.add_column("policy")
    table.add_column("fits")
    for heading in (
        "physical\nGiB",
        "utili-\nsation",
        "time\naverage",
        "min capacity\nGiB (x live)",
        "driver calls\n/ step",
        "driver us\n/ step",
        "waits\n/ step",
        "alloc\nns",
        "free\nns",
    ):
        table.add_column(heading, justify="right")
    for each in results:
        costs = (
            _number(each.driver_calls_per_step, 1),
            _number(each.driver_us_per_step),
            _number(each.stream_waits_per_step, 1),
            _number(each.host_ns_alloc),
            _number(each.host_ns_free),
        )
        table.add_row(
            each.policy,
            "[green]yes[/]" if each.oom is None else "[red]no[/]",
            _gib(each.peak_physical_bytes),
            _percent(each.utilisation),
            _percent(each.time_avg_utilisation),
            _min_capacity(each),
            # The bound allocates nothing, so it has no costs.
            *(["-"] * len(costs) if each.policy == "bound" else costs),
        )
    return table


def print_table(results: Sequence[ReplayResult], console: Console) -> None:
    """One table per trace, and under it where each policy that did not fit ran out."""
    for trace, group in groupby(results, key=lambda each: each.trace):
        rows = list(group)
        console.print(_table(trace, rows))
        for each in rows:
            if each.oom is not None:
                step = "set-up" if each.oom.step is None else f"step {each.oom.step}"
                message = escape(each.oom.message)
                console.print(f"{each.policy}: {step}, event {each.oom.event}: {message}")


def plot(
    results: Sequence[ReplayResult],
    path: str | os.PathLike[str],
    steps: Mapping[str, Sequence[tuple[str, int]]] | None = None,
) -> None:
    """Draws live and physical bytes over events, and below them the modelled driver time of each
    step, for each trace, as a PNG (or what the path's suffix says). A cross marks where a policy
    ran out of memory; `steps` are names and first events of each trace's steps, to be marked.

    Raises OSError if the file cannot be written, ValueError for a suffix matplotlib does not know.
    """
    # Imported here: it costs most of a second, and only a plot needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [list(group) for _, group in groupby(results, key=lambda each: each.trace)]
    figure = Figure(figsize=(11, 6 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 * len(panels), 1, height_ratios=[2.6, 1] * len(panels))
    for row, panel in enumerate(panels):
        axes = figure.add_subplot(grid[2 * row])
        _draw_panel(axes, panel)
        _mark_steps(axes, (steps or {}).get(panel[0].trace, ()))
        _draw_costs(figure.add_subplot(grid[2 * row + 1]), panel)
    figure.savefig(path, dpi=120)


def _mark_steps(axes: Any, steps: Sequence[tuple[str, int]]) -> None:
    """A dotted line where each step begins, names where there is room for them."""
    if not 0 < len(steps) <= _MOST_MARKS:
        return
    for _, event in steps:
        axes.axvline(event, color="0.6", linestyle=":", linewidth=0.7, zorder=0)
    named = steps[:: -(-len(steps) // _MOST_NAMES)]
    above = axes.secondary_xaxis("top")
    above.set_xticks([event for _, event in named], [name for name, _ in named], fontsize=8)
    above.tick_params(length=0, labelcolor="0.4")


def _draw_costs(axes: Any, panel: Sequence[ReplayResult]) -> None:
    for number, each in enumerate(panel):
        axes.plot(
            [step.step for step in each.steps],
            [step.driver_us / 1000 for step in each.steps],
            color=f"C{number}",
            marker="o" if len(each.steps) <= 60 else None,
            markersize=3,
            linewidth=1.2,
        )
    axes.set_xlabel("step")
    axes.set_ylabel("driver ms, modelled", fontsize=9)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", integer=True)


def _draw_panel(axes: Any, panel: Sequence[ReplayResult]) -> None:
    longest = max(panel, key=lambda each: each.events).timeline
    live = [size / _GIB for size in longest.live]
    axes.fill_between(
        longest.event, live, facecolor="0.85", edgecolor="0.65", linewidth=0.7, label="live"
    )
    for number, each in enumerate(panel):
        color = f"C{number}"
        physical = [size / _GIB for size in each.timeline.physical]
        # Thinner and thinner, so that curves on top of one another all show.
        width = max(2.8 - 0.6 * number, 0.8)
        axes.plot(each.timeline.event, physical, color=color, linewidth=width, label=each.policy)
        if each.oom is not None:
            at = physical[-1] if physical else 0.0
            axes.plot(
                [each.oom.event],
                [at],
                marker="X",
                markersize=11,
                color=color,
                markeredgecolor="black",
                linestyle="none",
                label=f"{each.policy}: out of memory",
                zorder=5,
            )
    capacity = panel[0].capacity_bytes
    if capacity is not None:
        axes.axhline(capacity / _GIB, color="black", linestyle="--", linewidth=1, label="capacity")
    axes.set_title(os.path.basename(panel[0].trace), loc="left", fontsize=10, pad=18)
    axes.set_xlabel("event")
    axes.set_ylabel("GiB")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
