"""A metric in the form that all metrics systems share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """What is measured, without values.

    Attributes:
        name: parts in words with "_", bytes with "_bytes" at the end; without "glake_" before it
            and "_total" behind it.
        counter: it only grows, until the process or the engine ends; else a gauge.
        labels: names of what parts its samples.
    """

    name: str
    help: str
    counter: bool = False
    labels: tuple[str, ...] = ()

    @property
    def in_bytes(self) -> bool:
        """Whether its unit is bytes; otherwise it has no unit."""
        return self.name.endswith("_bytes")


@dataclass
class Samples:
    """A metric's values now, each with the values of its labels."""

    metric: Metric
    values: list[tuple[tuple[str, ...], float]] = field(default_factory=list)
