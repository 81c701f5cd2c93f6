"""Traces for property tests: every list of drawn events becomes lines that a trace may hold."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

LARGEST = 48 << 20

PlannedEvent = tuple[str, int, int, int]
"""Operation, bytes, stream, and a number that picks a scale or a block."""


def events(streams: int) -> Any:
    """Events on `streams` streams, mostly allocations and frees."""
    return st.tuples(
        st.sampled_from("aaafffrs"),
        st.integers(1, LARGEST),
        st.integers(0, streams - 1),
        st.integers(0, 999),
    )


def lines_of(plan: list[PlannedEvent], scales: int = 4) -> list[str]:
    """The plan's lines after "s 0". An event that needs a live block is left out if there is none.

    Sizes are scaled down by one of `scales` powers of 64: most are small, some huge.
    """
    lines: list[str] = ["s 0"]
    live: list[int] = []
    for number, (op, size, stream, pick) in enumerate(plan):
        if op == "a":
            lines.append(f"a {number} {max(size >> (pick % scales * 6), 1)} {stream}")
            live.append(number)
        elif op == "f" and live:
            lines.append(f"f {live.pop(pick % len(live))}")
        elif op == "r" and live:
            lines.append(f"r {live[pick % len(live)]} {stream}")
        elif op == "s":
            lines.append(f"s {number + 1}")
    if not any(line.startswith("a") for line in lines):  # a trace needs one
        lines.append(f"a {len(plan)} 1 0")
    return lines
