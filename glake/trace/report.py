"""Shows replay results as a table, as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glake import drawing
from glake.trace.digest import LIVE_POINTS
from glake.trace.replay import ReplayResult
from glake.units import counted, micros, nanos, printable, scale, size, titled

if TYPE_CHECKING:
    from glake._C import Trace

_HOLDERS_NAMED = 5  # holders named when memory ran out; the JSON has all
_MOST_MARKS = 250
_MOST_NAMES = 12
_FAR = 1.5  # times the memory held: a capacity above this is named, and not drawn
_TALL, _LOW = 4.4, 1.6  # inches: the heights of the memory panel and the cost panel
# Parts of a panel's width and height. Crosses that are closer than this would hide each other.
_NEAR, _APART = 0.02, 0.055
_CROSS: Any = {
    "marker": "X", "markersize": 11, "markeredgecolor": "black", "linestyle": "none", "zorder": 5,
}  # fmt: skip


def to_json(result: ReplayResult) -> dict[str, Any]:
    """A JSON object for each trace and policy, with every field except the timeline and the
    layout."""
    fields = dataclasses.asdict(dataclasses.replace(result, layout=None))
    del fields["timeline"], fields["layout"]
    return fields


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _time(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _min_capacity(result: ReplayResult) -> str:
    if result.min_capacity_bytes is None or not result.trace_peak_live_bytes:
        return "-"
    least, live = result.min_capacity_bytes, result.trace_peak_live_bytes
    return f"{size(least)} ({least / live:.3f}x)"


def _table(trace: str, results: Sequence[ReplayResult]) -> Table:
    live = results[0].trace_peak_live_bytes
    capacity = results[0].capacity_bytes
    limit = "unlimited" if capacity is None else size(capacity)
    after = results[0].complete_after
    pace = "never" if after < 0 else f"after {after} events"
    title = f"{titled(trace)}: peak live {size(live)}, capacity {limit}, work completes {pace}"
    table = Table(title=escape(title), title_justify="left", pad_edge=False)
    table.add_column("policy")
    table.add_column("fits")
    for heading in (
        "physical\npeak",
        "utili-\nsation",
        "time\naverage",
        "min capacity\n(x live)",
        "calls\n/ step",
        *("driver\n/ step\n" + name.replace("-", "-\n") for name in results[0].by_costs),
        "waits\n/ step",
        "alloc\n",
        "free\n",
    ):
        table.add_column(heading, justify="right")
    for each in results:
        costs = (
            _number(each.driver_calls_per_step),
            *(_time(under.driver_us_per_step, micros) for under in each.by_costs.values()),
            _number(each.stream_waits_per_step),
            _time(each.host_ns_alloc, nanos),
            _time(each.host_ns_free, nanos),
        )
        table.add_row(
            each.policy,
            "[green]yes[/]" if each.oom is None else "[red]no[/]",
            size(each.peak_physical_bytes),
            _percent(each.utilisation),
            _percent(each.time_avg_utilisation),
            _min_capacity(each),
            # A policy of kind `bound` allocates nothing, so it has no costs.
            *(["-"] * len(costs) if each.is_bound else costs),
        )
    return table


def print_table(results: Sequence[ReplayResult], console: Console) -> None:
    """Prints a table for each trace, and below it where each policy that did not fit ran out of
    memory."""
    for trace, group in groupby(results, key=lambda each: each.trace):
        rows = list(group)
        console.print(_table(trace, rows))
        for each in rows:
            if each.oom is not None:
                step = "set-up" if each.oom.step is None else f"step {each.oom.step}"
                message = escape(printable(each.oom.message))
                console.print(f"{each.policy}: {step}, event {each.oom.event}: {message}")
                for held in each.oom.holders[:_HOLDERS_NAMED]:
                    name = escape(printable(held.tag) or "(untagged)")
                    text = f"  held: {size(held.bytes)} in {counted(held.blocks, 'block')}: {name}"
                    console.print(text, emoji=False)


def plot(
    results: Sequence[ReplayResult], path: str | os.PathLike[str], traces: Sequence[Trace]
) -> None:
    """Draws for each trace live and physical bytes over events, and below them the modelled driver
    time of each step if any was completed. The file is a PNG (or what the path's suffix says).

    Args:
        results: replays, those of one trace together.
        path: the file. It is replaced if it exists.
        traces: the traces (``load_trace``) of the results.

    The live bytes are those of the whole trace. If a policy ran out of memory, its curve ends there
    with a cross. Steps are marked.

    Raises OSError if the file cannot be written, ValueError for a suffix matplotlib does not know.
    """
    _figure(results, traces).savefig(path, dpi=120)


def _figure(results: Sequence[ReplayResult], traces: Sequence[Trace]) -> Any:
    # It is imported here, because the import takes most of a second, and only a plot needs it.
    drawing.load()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    named = {each.name: each for each in traces}
    panels = [list(group) for _, group in groupby(results, key=lambda each: each.trace)]
    costs = [any(each.steps for each in panel) for panel in panels]
    heights = [height for cost in costs for height in ((_TALL, _LOW) if cost else (_TALL,))]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    row = 0
    for panel, cost in zip(panels, costs, strict=True):
        trace = named[panel[0].trace]
        axes = figure.add_subplot(grid[row])
        _draw_panel(axes, panel, trace)
        spans = [each for each in trace.step_spans() if each["step"] is not None]
        _mark_steps(axes, [(f"step {each['step']}", each["first_event"]) for each in spans])
        if cost:
            _draw_costs(figure.add_subplot(grid[row + 1]), panel)
        row += 1 + cost
    return figure


def _mark_steps(axes: Any, steps: Sequence[tuple[str, int]]) -> None:
    """Draws a faint line where each step begins, with names if there is room for them."""
    if not 0 < len(steps) <= _MOST_MARKS:
        return
    for _, event in steps:
        axes.axvline(event, color="0.9", linewidth=0.6, zorder=0)
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
    numbers = [step.step for each in panel for step in each.steps]
    axes.set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)


def _draw_panel(axes: Any, panel: Sequence[ReplayResult], trace: Trace) -> None:
    capacity = panel[0].capacity_bytes
    highest = max(trace.peak_live_bytes, *(each.peak_physical_bytes for each in panel))
    # A capacity far above the memory held would flatten the curves, so it is named and not drawn.
    far = capacity is not None and capacity > _FAR * highest
    unit, bytes_of_unit = scale(highest if far else max(highest, capacity or 0))
    live = trace.live_timeline(LIVE_POINTS)
    axes.fill_between(
        [event for event, _ in live],
        [held / bytes_of_unit for _, held in live],
        facecolor="0.85",
        edgecolor="0.65",
        linewidth=0.7,
        label="live",
    )
    for number, each in enumerate(panel):
        physical = [held / bytes_of_unit for held in each.timeline.physical]
        # Each curve is thinner than the one before it, so that curves on top of each other can all
        # be seen.
        width = max(2.8 - 0.6 * number, 0.8)
        axes.plot(
            each.timeline.event, physical, color=f"C{number}", linewidth=width, label=each.policy
        )
    if capacity is not None and far:
        axes.plot([], [], color="white", label=f"capacity {size(capacity)},\nabove the chart")
    elif capacity is not None:
        at = capacity / bytes_of_unit
        axes.axhline(at, color="black", linestyle="--", linewidth=1, label="capacity")
    crosses = _crosses(
        panel, trace.events, _APART * (highest if far else max(highest, capacity or 0))
    )
    for event, held, number in crosses:
        axes.plot([event], [held / bytes_of_unit], color=f"C{number}", **_CROSS)
    if crosses:
        axes.plot([], [], color="white", label="out of memory", **_CROSS)
    top = max([highest, 0 if far else capacity or 0, *(held for _, held, _ in crosses)])
    axes.set_title(titled(panel[0].trace), loc="left", fontsize=10, pad=18)
    axes.set_xlabel("event")
    axes.set_ylabel(unit)
    axes.set_ylim(0, 1.05 * top / bytes_of_unit or 1)
    axes.margins(x=0.01)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def _crosses(
    panel: Sequence[ReplayResult], events: int, apart: float
) -> list[tuple[int, float, int]]:
    """(event, bytes, number) of each policy that ran out of memory. A cross is where its curve
    ends. It is moved `apart` bytes above another policy's cross that it would hide."""
    placed: list[tuple[int, float, int]] = []
    ends = [
        (each.timeline.physical[-1] if each.timeline.physical else 0, each.oom.event, number)
        for number, each in enumerate(panel)
        if each.oom is not None
    ]
    for held, event, number in sorted(ends):
        near = [at for other, at, _ in placed if abs(other - event) < _NEAR * events]
        placed.append((event, max([held, *(at + apart for at in near)]), number))
    return placed
