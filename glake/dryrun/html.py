"""The dry run's report: one HTML file, which can be opened anywhere, offline."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from glake import outside
from glake.dryrun.result import DryRun, verdict
from glake.errors import DryRunError
from glake.extras import missing
from glake.units import micros, scale, size

_WIDTH = 860  # pixels: the width of pictures
_LEFT = 110
_ROW = 44
_HEIGHT = 240
_MOST_TICKS = 8
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # distances between the marks of an axis


def require(path: str) -> None:
    """Raises DryRunError unless a report can be written there."""
    if importlib.util.find_spec("jinja2") is None:
        raise DryRunError(missing("dry-run --html", "Jinja2", "report"))
    if not Path(path).absolute().parent.is_dir():
        raise DryRunError(f"cannot write a report to {path}: no such directory")
    was_there = os.path.lexists(path)
    try:
        open(path, "ab").close()
    except OSError as error:
        raise DryRunError(f"cannot write a report to {path}: {error.strerror}") from None
    if not was_there:
        os.unlink(path)


def write(path: str, runs: Sequence[DryRun], job: str) -> None:
    """Writes the report. Raises DryRunError if the file system does not take it."""
    try:
        Path(path).write_text(report(runs, job), encoding="utf-8", errors="replace")
    except OSError as error:
        raise DryRunError(f"cannot write the report to {path}: {error.strerror}") from None


def report(runs: Sequence[DryRun], job: str) -> str:
    """The report's text. No text of the job is trusted: Jinja2 escapes all of it."""
    import jinja2

    assets = resources.files("glake.dryrun") / "assets"
    css = (resources.files("glake.trace") / "assets" / "report.css").read_text()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"size": size, "micros": micros}
    template = environment.from_string((assets / "dry_run.html").read_text())
    runs = list(runs)
    return template.render(
        css=css,
        job=job,
        verdict=verdict(runs),
        runs=runs,
        searched=any(each.smallest_capacity_bytes for each in runs),
        bars=_bars(runs),
        steps=_steps(runs),
        outside_source=outside.source(runs[0].outside_bytes, runs[0].ranks),
    )


def _bars(runs: Sequence[DryRun]) -> dict[str, Any]:
    """Draws a row for each allocator: outside, allocated and reserved bytes at their peaks, and how
    it ended."""
    most = max(max(_total(each), each.smallest_capacity_bytes or 0) for each in runs)
    most = max(most, min(runs[0].capacity_bytes, int(1.3 * most)))
    unit, factor = scale(most)
    across = (_WIDTH - _LEFT - 20) / max(most, 1)  # a job may take no memory at all
    rows = []
    for index, each in enumerate(runs):
        ends = (
            each.outside_bytes,
            each.outside_bytes + each.peak_allocated_bytes,
            _total(each),
        )
        smallest = each.smallest_capacity_bytes
        rows.append(
            {
                "name": each.allocator,
                "y": 10 + index * _ROW,
                "outside": ends[0] * across,
                "live": (ends[1] - ends[0]) * across,
                "slack": (ends[2] - ends[1]) * across,
                "label": f"{size(ends[2])}{'' if each.fits else ', ran out of memory'}",
                "smallest": None if smallest is None else _LEFT + smallest * across,
            }
        )
    return {
        "rows": rows,
        "left": _LEFT,
        "width": _WIDTH,
        "height": 10 + len(runs) * _ROW + 30,
        "end": _at_end(runs[0].capacity_bytes, across, most),
        "capacity": size(runs[0].capacity_bytes),
        "ticks": _ticks(most, factor, unit, across),
    }


def _total(run: DryRun) -> int:
    return run.outside_bytes + max(run.peak_reserved_bytes, run.peak_allocated_bytes)


def _at_end(capacity: int, across: float, most: int) -> float | None:
    return _LEFT + capacity * across if capacity <= most else None


def _ticks(most: int, factor: int, unit: str, across: float) -> list[dict[str, Any]]:
    step = next(step for step in _STEPS if most / factor / step <= _MOST_TICKS)
    marks = range(0, int(most / factor) + 1, step)
    return [{"x": _LEFT + at * factor * across, "text": f"{at} {unit}"} for at in marks]


def _steps(runs: Sequence[DryRun]) -> dict[str, Any] | None:
    """Draws a line for each allocator: reserved bytes after each step, scaled to the values."""
    lines = [each for each in runs if len(each.history) > 1]
    if not lines:
        return None
    values = [held for each in lines for held, _ in each.history]
    low, high = min(values), max(values)
    pad = max((high - low) // 10, high // 100, 1)
    low, high = max(0, low - pad), high + pad
    count = max(len(each.history) for each in lines)
    right = _WIDTH - _LEFT - 20

    def point(index: int, held: int) -> str:
        x = _LEFT + right * index / (count - 1)
        y = 10 + (_HEIGHT - 50) * (1 - (held - low) / (high - low))
        return f"{x:.1f},{y:.1f}"

    return {
        "lines": [
            {
                "name": each.allocator,
                "points": " ".join(point(i, held) for i, (held, _) in enumerate(each.history)),
            }
            for each in lines
        ],
        "left": _LEFT,
        "width": _WIDTH,
        "height": _HEIGHT,
        "low": size(low),
        "high": size(high),
        "count": count,
        "zoomed": low > 0,
    }
