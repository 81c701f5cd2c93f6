"""Draws rate against size, with a row of panels for each platform."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from glake.transfer import pictures
from glake.units import exact_size

Row = dict[str, Any]
_LINES = (
    ("achieved", "glake", "#15803d", "-"),
    ("plain", "plain", "#6b7280", "-"),
    ("equal_split", "equal shares", "#c2410c", "--"),
    ("bound", "bound", "#1d4ed8", ":"),
)
_PANELS = 6  # in a row
_LINE, _HEAD = 2.1, 0.5  # inches
_WHOLE = 2  # of more platforms than this, only a row of transfers is shown
_TELLING = (
    ("h2d", "local"),
    ("h2d", "interleaved"),
    ("d2h", "interleaved"),
    ("h2d:pair", "interleaved"),
    ("bidir", "interleaved"),
)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Writes the picture by `pictures.page`. Raises what that raises."""
    platforms = _chosen(rows)
    lines = sum(-(-len(curves) // _PANELS) for _, curves in platforms)
    height = _LINE * lines + _HEAD
    with pictures.page(file, (2.6 * _PANELS, height), dpi=100, font_size=7) as figure:
        line = 0
        for name, curves in platforms:
            for number, curve in enumerate(curves):
                place = (line + number // _PANELS) * _PANELS + number % _PANELS
                _panel(figure.add_subplot(lines, _PANELS, place + 1), name, curve)
            line += -(-len(curves) // _PANELS)
        figure.subplots_adjust(0.04, 0.4 / height, 0.99, 1 - _HEAD / height, 0.25, 0.45)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(_LINES))


def _chosen(rows: Sequence[Row]) -> list[tuple[str, list[list[Row]]]]:
    """Each platform's curves. With many platforms, only the row of curves that show most."""
    platforms = [
        (name, [list(each) for _, each in groupby(of, key=_curve)])
        for name, of in groupby(rows, key=lambda row: str(row["platform"]))
    ]
    if len(platforms) <= _WHOLE:
        return platforms
    shown = []
    for name, curves in platforms:
        by_name = {_curve(curve[0]): curve for curve in curves}
        peers = [curve for curve in curves if curve[0]["transfer"].startswith("p2p:")]
        telling = [by_name[key] for key in _TELLING if key in by_name]
        shown.append((name, (telling + peers)[:_PANELS]))
    return shown


def _curve(row: Row) -> tuple[str, str]:
    return row["transfer"], row["host"]


def _panel(axes: Any, platform: str, curve: Sequence[Row]) -> None:
    places = range(len(curve))  # sizes at equal distances: a logarithmic axis draws slowly
    for key, label, colour, style in _LINES:
        axes.plot(
            places, [row[key] for row in curve], style,
            color=colour, label=label, marker="." if key == "achieved" else None, linewidth=1.2,
        )  # fmt: skip
    axes.set_xticks(places, [exact_size(row["size"]) for row in curve], rotation=40, fontsize=6)
    axes.set_ylim(bottom=0)
    host = f", {curve[0]['host']}" if "p2p" not in curve[0]["transfer"] else ""
    title = f"{platform}: {curve[0]['transfer']}{host}".replace("$", r"\$")
    axes.set_title(title, fontsize=7)
    axes.set_ylabel("GB/s", labelpad=1)
    axes.grid(alpha=0.3)
