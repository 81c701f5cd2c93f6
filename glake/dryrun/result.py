"""The results of a dry run, one object for each allocator."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glake.typing import Json


@dataclass(frozen=True)
class Refusal:
    """A request that found no memory.

    Attributes:
        rank: the rank that asked.
        device: the GPU's number.
        requested_bytes: the bytes requested; 0: a library of CUDA's was refused memory for itself,
            and `message` names its call.
        step: the optimizer steps that were done before it.
        message: the exception's text.
        holders: (the script's line that asked, bytes, blocks) of the live blocks, the most bytes
            first.
    """

    rank: int
    device: int
    requested_bytes: int
    step: int
    message: str
    holders: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class DryRun:
    """One run of the job with one allocator. Sizes are bytes. If ranks or devices differ, the
    largest value counts.

    Attributes:
        allocator: the allocator's name.
        capacity_bytes: memory of each simulated GPU.
        peak_allocated_bytes: most bytes of live blocks.
        peak_reserved_bytes: most bytes that the allocator held.
        outside_bytes: memory of each GPU that CUDA and NCCL take.
        driver_calls: calls that manage memory, events and waits, of the rank with the most calls.
        driver_us: the modelled microseconds of these calls, by the table of prices in use.
        steps: optimizer steps that every rank did.
        oom: the refused request that ended the job; None: there was none.
        host_rss_bytes: host memory of a rank.
        ranks: how many ranks used a GPU.
        exit_code: the script's exit code.
        seconds: the run's time on this machine.
        step_seconds: the median time between two steps on this machine; 0 if there were none.
        driver_us_by: the modelled microseconds by every table of prices (docs/trace-format.md).
        refusals: the number of refused requests, also of those after which the job went on.
        smallest_capacity_bytes: the smallest memory that was enough, if it was searched; else None.
        files: memory snapshots that were kept.
        history: (reserved, allocated) bytes of the fullest device after each step.
        driver_history: (calls, microseconds) up to each step, of the rank with the most calls.
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

    def to_json(self) -> dict[str, Json]:
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
    """One plain sentence about all runs at their capacity."""
    from glake.units import size

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
