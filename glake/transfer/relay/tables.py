"""Shows the relay service's books as a table."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from glake.platforms import for_people

_MOST_LINKS = 4


def table(books: dict[str, Any]) -> Table:
    """One row for each client of a service's books."""
    title = f"{books['topology']}: process {books['pid']}, for {books['seconds']:.0f} s"
    shown = Table(title=escape(title), title_justify="left", caption_justify="left")
    for column in ("process", "GPUs", "may relay over", "copies", "GB/s", "least parts of links"):
        shown.add_column(column, overflow="fold")
    for client in books["clients"]:
        shown.add_row(
            str(client["pid"]),
            _gpus(client["gpus"]),
            _gpus(client["relays"]),
            ", ".join(map(_copy, client["demands"])) or "none",
            f"{client['rate']:.1f}" if client["demands"] else "-",
            _parts(books["limits"], client["parts"]),
        )
    shown.caption = None if books["clients"] else "no clients"
    return shown


def _gpus(gpus: list[int]) -> str:
    return " ".join(f"cuda:{gpu}" for gpu in gpus) or "-"


def _copy(demand: list[Any]) -> str:
    return f"{_end(*demand[:2])}>{_end(*demand[2:4])}"


def _end(gpu: int, node: int) -> str:
    if gpu >= 0:
        return f"cuda:{gpu}"
    return f"cpu:{node}" if node >= 0 else "cpu"


def _parts(limits: list[list[Any]], parts: list[float]) -> str:
    """The limits of which the client has the smallest parts. Other clients use these limits
    most."""
    named = sorted((part, name) for part, (name, _) in zip(parts, limits, strict=False))
    return ", ".join(f"{for_people(name)} {part:.0%}" for part, name in named[:_MOST_LINKS])
