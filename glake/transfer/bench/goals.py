"""The goals of glake (docs/transfer-bench.md), and which of them a row misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glake.platforms import Platform

_KIB, _MIB = 1 << 10, 1 << 20
# Times the rate of a plain copy. Where the bound is less, plain copies are the goal.
RELAY_GAIN = 1.15
PLAIN = 0.98  # the part of a plain copy's rate that every row should reach
GOALS_FROM = 256 * _MIB  # bytes from which a row with gain should reach a part of the bound
_GAIN = 1.02  # times the rate of a plain copy: less counts as no gain
_ROUNDING = 1e-4  # the rounding of printed figures
_COHERENT = 130  # GB/s: a faster host link is NVLink to the CPU
_GOALS = (0.92, 0.95)  # of the bound, at 256 MiB and at 1 GiB
_FAST = 200  # GB/s: on faster links a chunk takes no longer than a copy's start
_FAST_GOALS = (0.80, 0.90)
_MOST_CORE = 0.30  # the share of a core that the driver calls of a path may take


@dataclass(frozen=True)
class Part:
    """The part of the bound that a row with gain reaches, and the goal."""

    share: float
    goal: float
    of: str  # "bound" or "fair_bound"

    @property
    def reached(self) -> bool:
        """Whether the row reaches the goal."""
        return self.share >= self.goal * (1 - _ROUNDING)


def below_plain(row: Mapping[str, Any], label: str = "achieved") -> bool:
    """Whether this rate of the row does not reach PLAIN."""
    return bool(row[label] < PLAIN * (1 - _ROUNDING) * row["plain"])


def part_of_bound(
    row: Mapping[str, Any], platform: Platform, label: str = "achieved"
) -> Part | None:
    """The part of the bound that this rate of a row reaches. None if there is nothing to gain, or
    if the copy is too short for a goal.

    Equal copies that begin together cannot exceed `fair_bound`, whatever the largest sum is.
    """
    if not row["gain"] or row["size"] < GOALS_FROM:
        return None
    of = "bound"
    if "fair_bound" in row and row["fair_bound"] < row["bound"]:
        of = "fair_bound"
    goals = _FAST_GOALS if _link_rate(row["transfer"], platform) >= _FAST else _GOALS
    return Part(row[label] / row[of], goals[row["size"] >= 1 << 30], of)


def missed(row: Mapping[str, Any], platform: Platform) -> list[dict[str, Any]]:
    """The goals that the row misses. Each has `of`, `is` (the row's value) and `goal`.

    `of` says what the values are. "bound", "fair_bound", "plain" and "equal_split": a share of that
    rate. "time": microseconds more than a plain copy takes. "jain": Jain's index of fairness.
    """
    achieved, size = row["achieved"], row["size"]
    found: list[dict[str, Any]] = []

    def least(goal: float, of: str) -> None:
        if achieved < goal * row[of] * (1 - _ROUNDING):
            found.append({"of": of, "is": round(achieved / row[of], 4), "goal": goal})

    if size < 256 * _KIB and row["us"]["achieved"] > row["us"]["plain"] + 2:
        more = row["us"]["achieved"] - row["us"]["plain"]
        found.append({"of": "time", "is": round(more, 3), "goal": 2})
    single = row["transfer"] in ("h2d", "d2h")
    if row["gain"] and single and size >= gains_from(platform):
        least(_GAIN, "plain")
    elif size >= 256 * _KIB:
        least(PLAIN, "plain")
    if size >= 64 * _MIB:
        least(0.95, "equal_split")
        # With held streams, threads poll for each chunk. They take more of a core, and have no
        # goal.
        if row["order"] == "enqueued" and row["core_per_path"] > _MOST_CORE:
            found.append({"of": "core_per_path", "is": row["core_per_path"], "goal": _MOST_CORE})
    joint = "jain" in row
    if part := part_of_bound(row, platform):
        least(part.goal, part.of)
    # If GPUs differ, equal rates would not be fair.
    alike = joint and row["transfer"] != "bidir" and row["fair_bound"] > 0.9 * row["bound"]
    if alike and size >= 256 * _MIB and row["jain"] < 0.95:
        found.append({"of": "jain", "is": row["jain"], "goal": 0.95})
    return found


def gains_from(platform: Platform) -> float:
    """The bytes from which relays should pay off: 4 MiB, or 8 MiB if NVLink joins GPU and CPU."""
    if not any(edge.source[0] == "g" and edge.target[0] in "gN" for edge in platform.edges):
        return float("inf")
    return (8 if _own_rate(platform) > _COHERENT else 4) * _MIB


def _link_rate(transfer: str, platform: Platform) -> float:
    """GB/s of the fastest link of the copy's ends: to other GPUs, or to their socket."""
    if not transfer.startswith("p2p:"):
        return _own_rate(platform)
    source = f"g{transfer.removeprefix('p2p:').split('>')[0]}"
    rates = [edge.gb_per_s for edge in platform.edges if edge.source == source]
    return max(rates, default=0.0)


def _own_rate(platform: Platform) -> float:
    """GB/s of a GPU's direct link to its socket."""
    own = [edge.gb_per_s for edge in platform.edges if {edge.source[0], edge.target[0]} == {*"gs"}]
    return max(own, default=0.0)
