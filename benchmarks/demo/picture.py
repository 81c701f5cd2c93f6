"""The demo's picture: live and physical memory over the training steps, a panel per policy."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from compare import POLICIES, Outcome
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glake.trace.replay import ReplayResult

COLOURS = {"native": "#c44e2b", "expandable": "#8a63b8", "glake": "#1b7f5c"}
LIVE = "#c9d3dc"


def step_events(trace_path: Path) -> list[int]:
    """The index among the trace's events (comments left out) of each step's first."""
    with open(trace_path, "rb") as raw:
        data = raw.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    lines = (line.strip() for line in data.splitlines())
    events = (line for line in lines if line and not line.startswith(b"#"))
    return [index for index, line in enumerate(events) if line.startswith(b"s")]


def draw(outcomes: list[Outcome], trace_path: Path, path: Path, subtitle: str) -> None:
    """Writes the picture (PNG). Raises OSError if it cannot."""
    starts = step_events(trace_path)
    top = max(
        max(each.result.peak_physical_bytes, each.result.trace_peak_live_bytes,
            each.result.capacity_bytes or 0,
            each.unlimited.peak_physical_bytes if each.unlimited else 0)
        for each in outcomes
    )  # fmt: skip
    unit, name = (2**30, "GiB") if top >= 4 * 2**30 else (2**20, "MiB")
    figure = Figure(figsize=(11, 2.9 * len(outcomes) + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(outcomes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    whole = max((each.unlimited or each.result for each in outcomes), key=lambda run: run.events)
    for axes, each in zip(panels, outcomes, strict=True):
        _panel(axes, each, whole, starts, unit, name)
        axes.set_ylim(0, 1.2 * top / unit)
    panels[-1].set_xlabel("training step")
    figure.suptitle(
        "GPT training: memory the job holds, and memory taken from the device for it\n",
        x=0.01, ha="left", fontsize=14, fontweight="bold",
    )  # fmt: skip
    figure.text(0.011, 0.957, subtitle, fontsize=10, color="0.35", va="center")
    figure.savefig(path, dpi=130)


def _panel(
    axes: Axes, outcome: Outcome, whole: ReplayResult, starts: list[int], unit: int, name: str
) -> None:
    found, colour = outcome.result, COLOURS[outcome.result.policy]

    def curve(run: ReplayResult, values: list[int]) -> tuple[Any, Any]:
        return _steps(run.timeline.event, starts, whole.events), np.array(values) / unit

    at, live = curve(whole, whole.timeline.live)
    axes.fill_between(at, live, color=LIVE, linewidth=0, label="live: the job's tensors")
    if outcome.unlimited is not None:
        at, physical = curve(outcome.unlimited, outcome.unlimited.timeline.physical)
        label = "what it would have taken"
        axes.plot(at, physical, color=colour, linewidth=1, linestyle=":", label=label)
    at, physical = curve(found, found.timeline.physical)
    axes.plot(at, physical, color=colour, linewidth=2, label="physical: taken from the device")
    verdict = f"fits; peak {found.peak_physical_bytes / unit:,.1f} {name}"
    if found.oom is not None:
        when = "set-up" if found.oom.step is None else f"step {found.oom.step}"
        verdict = f"out of memory in {when}"
        (x,) = _steps([found.oom.event], starts, whole.events)
        y = physical[-1] if len(physical) else 0.0
        axes.plot([x], [y], marker="X", markersize=13, color="#d00000", markeredgecolor="white",
                  linestyle="none", zorder=6, label="out of memory")  # fmt: skip
    if found.capacity_bytes is not None:
        limit = found.capacity_bytes / unit
        label = f"capacity: {limit:,.1f} {name}"
        axes.axhline(limit, color="0.15", linewidth=1, linestyle="--", label=label)
    if found.min_capacity_bytes is not None:
        times = found.min_capacity_bytes / found.trace_peak_live_bytes
        needs = f"{found.min_capacity_bytes / unit:,.1f} {name}"
        verdict += f"; needs at least {needs} ({times:.3f} x peak live)"
    axes.set_title(f"{POLICIES[found.policy]}: {verdict}", loc="left", fontsize=11, color=colour)
    axes.set_ylabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.005)
    axes.grid(axis="y", color="0.92", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def _steps(events: list[int], starts: list[int], count: int) -> Any:
    """Event indices as steps: 0 where step 0 begins, set-up on a unit's length before it."""
    known = [0, *starts, count] if starts and starts[0] > 0 else [*starts, count]
    first = -1 if len(known) == len(starts) + 2 else 0
    return np.interp(events, known, np.arange(first, first + len(known)))
