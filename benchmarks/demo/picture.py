"""The demo's picture: live and physical memory over the training steps, a panel per policy."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Scale:
    """The axis's unit in bytes, and its name."""

    unit: int
    name: str

    def text(self, size: int) -> str:
        return f"{size / self.unit:,.1f} {self.name}"


def step_events(trace_path: Path) -> list[int]:
    """The index of each step's first event in the trace, without comments."""
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
    runs = [run for each in outcomes for run in (each.result, each.unlimited) if run is not None]
    top = max(max(run.peak_physical_bytes, run.capacity_bytes or 0) for run in runs)
    scale = _Scale(*((2**30, "GiB") if top >= 4 * 2**30 else (2**20, "MiB")))
    whole = max(runs, key=lambda run: run.events)
    figure = Figure(figsize=(10, 2.5 * len(outcomes) + 1.4))
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(outcomes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, each in zip(panels, outcomes, strict=True):
        _panel(axes, each, whole, starts, scale)
        axes.set_ylim(0, 1.12 * top / scale.unit)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    panels[-1].set_xlabel("training step (within a step, events are evenly spaced)")
    title = "Memory the job's tensors hold, and memory taken from the device for them"
    figure.text(0.012, 0.985, title, fontsize=14, fontweight="bold", va="top")
    figure.text(0.012, 0.952, subtitle, fontsize=10, color="0.35", va="top")
    figure.tight_layout(rect=(0, 0, 1, 0.935))
    figure.savefig(path, dpi=130)


def _panel(
    axes: Axes, outcome: Outcome, whole: ReplayResult, starts: list[int], scale: _Scale
) -> None:
    found, colour = outcome.result, COLOURS[outcome.result.policy]

    def places(events: list[int]) -> Any:
        return _steps(events, starts, whole.events)

    def sizes(values: list[int]) -> Any:
        return np.array(values) / scale.unit

    live, taken = whole.timeline, found.timeline
    axes.fill_between(places(live.event), sizes(live.live), color=LIVE, linewidth=0, label="live")
    if outcome.unlimited is not None:
        free = outcome.unlimited.timeline
        axes.plot(places(free.event), sizes(free.physical), color=colour, linewidth=1.2,
                  linestyle=":", label="physical,\nif unlimited")  # fmt: skip
    axes.plot(
        places(taken.event), sizes(taken.physical), color=colour, linewidth=2, label="physical"
    )
    if found.capacity_bytes is not None:
        axes.axhline(found.capacity_bytes / scale.unit, color="0.15", linewidth=1, linestyle="--",
                     label=f"capacity\n{scale.text(found.capacity_bytes)}")  # fmt: skip
    if found.oom is not None:
        last = taken.physical[-1] if taken.physical else 0
        axes.plot(places([found.oom.event]), sizes([last]), marker="X", markersize=13,
                  color="#d00000", markeredgecolor="white", linestyle="none", zorder=6,
                  label="out of memory")  # fmt: skip
    axes.set_title(_verdict(found, scale), loc="left", fontsize=10.5, color=colour)
    axes.set_ylabel(scale.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.005)
    axes.grid(axis="y", color="0.92", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _verdict(found: ReplayResult, scale: _Scale) -> str:
    """A panel's title: whether the policy fits, and what it needs."""
    verdict = "fits"
    if found.oom is not None:
        at = "set-up" if found.oom.step is None else f"step {found.oom.step}"
        verdict = f"runs out of memory in {at}"
    if found.min_capacity_bytes is not None:
        times = found.min_capacity_bytes / found.trace_peak_live_bytes
        verdict += f"; needs {scale.text(found.min_capacity_bytes)}, {times:.3f} x peak live"
    return f"{found.policy}, {POLICIES[found.policy]}: {verdict}"


def _steps(events: list[int], starts: list[int], count: int) -> Any:
    """Event indices in units of steps. Step 0 begins at 0, and set-up takes the unit before."""
    known = [0, *starts, count] if starts and starts[0] > 0 else [*starts, count]
    first = -1 if len(known) == len(starts) + 2 else 0
    return np.interp(events, known, np.arange(first, first + len(known)))
