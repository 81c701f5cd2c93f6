"""A metric in the form that all metrics systems share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """The description of a metric, without values.

    Attributes:
        name: words joined by "_", with "_bytes" at the end if its unit is bytes. It has no "glake_"
            at the start and no "_total" at the end.
        counter: True: it only grows, until the process or the engine ends; False: a gauge.
        labels: the names of the labels that tell its samples apart.
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
