"""Compares the engine's gain in two worlds, with a line for each platform. In one world calls,
waits and enqueued copies cost what they cost on a GPU. In the other they cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from glake.platforms import Platform
from glake.transfer.bench.goals import below_plain, part_of_bound

Row = Mapping[str, Any]
# A world is a pair (completion, order) of run.measure. NEW is as on a GPU. In OLD a thread wakes at
# the moment when a copy is done, and copies are made in held streams.
NEW, OLD = ("polled", "enqueued"), ("instant", "held")
SIZES = "4MiB,64MiB,256MiB,1GiB"


@dataclass
class Tally:
    """Counts what rows reach. A row with gain should reach its goal. Every row should reach a plain
    copy's rate."""

    rows: int = 0
    gain: int = 0
    reached: int = 0
    worst: float = float("inf")  # the least part of the bound that a row with gain reaches
    worst_row: str = "-"
    below_plain: int = 0
    least_of_plain: float = float("inf")
    first_below: int = 0  # rows below plain copies when their copies first began together

    def add(self, row: Row, platform: Platform) -> None:
        """Counts one row."""
        self.rows += 1
        of_plain = row["achieved"] / row["plain"]
        self.least_of_plain = min(self.least_of_plain, of_plain)
        self.below_plain += below_plain(row)
        self.first_below += below_plain(row, "first")
        part = part_of_bound(row, platform)
        if part is None:
            return
        self.gain += 1
        self.reached += part.reached
        if part.share < self.worst:
            self.worst = part.share
            self.worst_row = f"{row['transfer']} {row['host']} {row['size'] >> 20}MiB"

    def __iadd__(self, other: Tally) -> Tally:
        """Adds the other tally's rows to this one's."""
        if other.worst < self.worst:
            self.worst, self.worst_row = other.worst, other.worst_row
        for name in ("rows", "gain", "reached", "below_plain", "first_below"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.least_of_plain = min(self.least_of_plain, other.least_of_plain)
        return self


def tallies(rows: Sequence[Row], platforms: Mapping[str, Platform]) -> dict[str, Tally]:
    """One tally for each platform. All rows are of one world."""
    found: dict[str, Tally] = {}
    for row in rows:
        name = str(row["platform"])
        found.setdefault(name, Tally()).add(row, platforms[name])
    return found


def show(rows: Sequence[Row], platforms: Mapping[str, Platform], console: Console) -> None:
    """Prints the table of rows of both worlds."""
    worlds = {
        world: tallies(list(each), platforms)
        for world, each in groupby(rows, key=lambda row: (row["completion"], row["order"]))
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("platform")
    table.add_column("GPUs", justify="right")
    for name in ("reach the goal", "worst", "< plain", "first", "old: reach", "worst", "< plain"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worst row")
    whole = {NEW: Tally(), OLD: Tally()}
    for name, platform in platforms.items():
        new, old = (worlds[world].get(name, Tally()) for world in (NEW, OLD))
        whole[NEW] += new
        whole[OLD] += old
        shape = f"{platform.gpus}/{len(platform.sockets)}"
        table.add_row(name, shape, *_cells(new), str(new.first_below), *_cells(old), new.worst_row)
    table.add_section()
    new, old = whole[NEW], whole[OLD]
    table.add_row("all", "", *_cells(new), str(new.first_below), *_cells(old), new.worst_row)
    console.print(table)
    console.print(
        f"Simulated: {new.rows} rows in each world. GPUs: their number, and that of sockets. Reach "
        "the goal: of the rows with gain, of 256 MiB and more. < plain: rows below 0.98 of plain "
        "copies. first: such rows when their copies begin together for the first time. old: a "
        "thread wakes at the moment when a copy is done, and copies in held streams. "
        "docs/transfer-bench.md",
        style="dim",
        highlight=False,
        markup=False,
    )


def _cells(tally: Tally) -> list[str]:
    if tally.gain == 0:
        return ["-", "-", str(tally.below_plain)]
    return [f"{tally.reached} of {tally.gain}", f"{tally.worst:.3f}", str(tally.below_plain)]
