"""Prints the table: for each platform its transfers, by place of host memory and size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glake.transfer.bench.goals import GOALS_FROM, PLAIN, below_plain
from glake.units import exact_size

Row = dict[str, Any]


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the rows of `run.measure`. Figures below a goal are red and have an asterisk."""
    table = Table(box=None, pad_edge=False)
    for name in ("transfer", "host"):
        table.add_column(name)
    for name in (
        "size", "glake", "bound", "plain", "equal shares", "/ bound", "/ plain",
        "/ equal shares", "Jain", "core",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for platform, of_platform in groupby(rows, key=lambda row: str(row["platform"])):
        table.add_section()
        table.add_row(f"[bold]{escape(platform)}[/bold]")
        before = None
        for row in of_platform:
            named = (row["transfer"], row["host"])
            table.add_row(*_cells(row, named if named != before else ("", "")))
            before = named
    console.print(table)
    count = sum(bool(row["missed"]) for row in rows)
    console.print(
        "GB/s (1e9 bytes a second) of virtual time, the sum where several copies run; bound: most "
        "that any paths could carry; plain: one driver copy, equal shares: GLake's split, both "
        "simulated alike. p2p:0>1: from cuda:0 to cuda:1. host is where host memory is. "
        "docs/transfer-bench.md\n"
        f"*: below a goal; {count} of {len(rows)} rows are.{_reached(rows)}{_first_times(rows)}",
        style="dim",
        highlight=False,
        markup=False,
    )


def _reached(rows: Sequence[Row]) -> str:
    """Says how many rows with a gain reach their part of the bound, by size."""
    said = []
    gains = [row for row in rows if row["gain"] and row["size"] >= GOALS_FROM]
    for size in sorted({row["size"] for row in gains}):
        of_size = [row for row in gains if row["size"] == size]
        missed = [
            each["is"] for row in of_size for each in row["missed"] if each["of"].endswith("bound")
        ]
        worst = f", the worst at {min(missed):.2f} of it" if missed else ""
        reached = len(of_size) - len(missed)
        said.append(
            f"{reached} of {len(of_size)} at {exact_size(size)}{worst}{_by_one_call(of_size)}"
        )
    if not said:
        return ""
    return f" Of the rows with a gain, so many reach their part of the bound: {'; '.join(said)}."


def _by_one_call(rows: Sequence[Row]) -> str:
    """Says how many rows of several copies reach it, one by one and if one call begins them."""
    several = [row for row in rows if "batch_reached" in row]
    if not several:
        return ""
    alone = sum(not any(each["of"].endswith("bound") for each in row["missed"]) for row in several)
    batch = sum(row["batch_reached"] for row in several)
    return f" ({alone} of {len(several)} of several copies, {batch} if one call begins them)"


def _first_times(rows: Sequence[Row]) -> str:
    """Says how many rows of several copies were slow before the engine had learnt anything."""
    several = [row for row in rows if "first_batch" in row]
    if not several:
        return ""

    def slow(label: str) -> str:
        count = sum(below_plain(row, label) for row in several)
        return f"{count} (worst {min(row[label] / row['plain'] for row in several):.2f})"

    return (
        f" Of {len(several)} rows of several copies, so many are below {PLAIN} of plain copies the "
        f"first time: begun one by one {slow('first')}, by one call {slow('first_batch')}."
    )


def _cells(row: Row, named: tuple[str, str]) -> list[str]:
    below = {each["of"].removeprefix("fair_") for each in row["missed"]}

    def marked(text: str, of: str) -> str:
        return f"[red]{text}*[/red]" if of in below else text + " "

    def ratio(of: str) -> str:
        return marked(f"{row['achieved'] / row[of]:.3f}" if row[of] else "-", of)

    return [
        *named,
        exact_size(row["size"]),
        marked(_rate(row["achieved"]), "time"),
        *(_rate(row[name]) for name in ("bound", "plain", "equal_split")),
        *(ratio(name) for name in ("bound", "plain", "equal_split")),
        marked(f"{row['jain']:.3f}", "jain") if "jain" in row else "",
        marked(f"{row['core_per_path']:.2f}", "core_per_path"),
    ]


def _rate(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
