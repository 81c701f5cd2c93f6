"""What a dry run found, one object an allocator."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """A request that found no memory: bytes asked for, where, and who held what at that moment.

    step: optimizer steps done before it. message: the exception's text. holders: (where the memory
    was asked for, bytes, blocks), most bytes first.
    """

    rank: int
    device: int
    requested_bytes: int
    step: int
    message: str
    holders: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class DryRun:
    """One run of the job under one allocator. Sizes are bytes, and the most of any rank or device.

    capacity_bytes: of each simulated GPU. outside_bytes: of it, taken by CUDA itself (and NCCL).
    driver_calls, driver_us: calls that manage memory, events and waits, and their modelled time by
    the table in force, of the rank with most; driver_us_by: their time by every table of prices
    (docs/trace-format.md). steps: optimizer steps that every rank did. oom: what was refused, if
    the job ended by it. refusals: requests refused in all, those included that the job lived on
    from. step_seconds: of this machine's time, the median between two steps, 0 if there were none.
    smallest_capacity_bytes: found by a search, else None. history: (reserved, allocated) of the
    fullest device after each step; driver_history: (calls, us) so far, of the rank with most.
    """

    allocator: str
    capacity_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    outside_bytes: int
    driver_calls: int
    driver_us: float
    steps: int
    oom: Refusal | None
    host_rss_bytes: int
    ranks: int
    exit_code: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    driver_us_by: dict[str, float] = field(default_factory=dict)
    refusals: int = 0
    smallest_capacity_bytes: int | None = None
    files: tuple[str, ...] = ()
    history: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    driver_history: tuple[tuple[int, float], ...] = field(default=(), repr=False)

    @property
    def fits(self) -> bool:
        """Whether the job ran to its end."""
        return self.oom is None

    def to_json(self) -> dict[str, Any]:
        """The run as plain values."""
        row = asdict(self)
        row["files"] = list(self.files)
        for name in ("history", "driver_history"):
            row[name] = [list(point) for point in row[name]]
        if self.oom is not None:
            names = ("where", "bytes", "blocks")
            row["oom"]["holders"] = [
                dict(zip(names, each, strict=True)) for each in self.oom.holders
            ]
        return row


def verdict(runs: list[DryRun]) -> str:
    """One plain sentence over all runs at their capacity."""
    from glake.trace.units import size

    where = f"in {size(runs[0].capacity_bytes)}"
    good = [each.allocator for each in runs if each.fits]
    bad = [each.allocator for each in runs if not each.fits]
    if not bad:
        return f"The job runs {where} with {_listed(good)}."
    if not good:
        return f"The job runs out of memory {where} with {_listed(bad)}."
    return f"The job runs {where} with {_listed(good)}, and out of memory with {_listed(bad)}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
