"""Computes the rates that plain copies would get together, and compares measured rates with
them."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from glake.platforms import Platform
from glake.transfer.topology.copier import Copy
from glake.transfer.topology.routes import Routes

SATURATED = 0.95  # a load above this share fills a limit: timing is not more exact


class Contention:
    """A platform's limits for sets of copies, in GB/s. Limits that include one of the edges
    `without` are left out, as if they were infinite.
    """

    def __init__(self, platform: Platform, routes: Routes, without: Collection[str] = ()) -> None:
        self._routes = routes
        limits = [({edge.name: 1.0}, edge.gb_per_s) for edge in platform.edges]
        limits += [(dict(joint.weights), joint.gb_per_s) for joint in platform.joint]
        self._limits = [each for each in limits if not any(name in each[0] for name in without)]

    def total(self, copies: Sequence[Copy]) -> float:
        """The summed rate of all copies at once, if they share links max-min fairly. It is infinite
        if nothing limits one of them."""
        loads, rates = self._loads(copies), [0.0] * len(copies)
        growing = set(range(len(copies)))
        while growing:
            step, full = math.inf, set(growing)
            for load, limit in loads:
                slope = sum(load[i] for i in growing)
                if slope <= 0:
                    continue
                used = sum(w * rates[i] for i, w in enumerate(load) if w)
                if max(limit - used, 0.0) / slope < step:
                    step = max(limit - used, 0.0) / slope
                    full = {i for i in growing if load[i]}
            for i in growing:
                rates[i] += step
            growing -= full
        return sum(rates)

    def explains(self, copies: Sequence[Copy], rates: Sequence[float]) -> bool:
        """Whether the limits explain these rates: no limit is exceeded, and every copy crosses a
        full limit. It does not matter how copies share that limit."""
        stopped: set[int] = set()
        for load, limit in self._loads(copies):
            used = sum(w * rate for w, rate in zip(load, rates, strict=True))
            if used * SATURATED > limit:
                return False
            if used >= SATURATED * limit:
                stopped.update(i for i, weight in enumerate(load) if weight)
        return len(stopped) == len(copies)

    def _loads(self, copies: Sequence[Copy]) -> list[tuple[list[float], float]]:
        """The load that 1 GB/s of each copy puts on each limit that any of the copies crosses."""
        ways = [
            [edge.name for edge in self._routes.between(copy.source, copy.target)]
            for copy in copies
        ]
        found = []
        for weights, limit in self._limits:
            load = [sum(weights.get(name, 0.0) for name in way) for way in ways]
            if any(load):
                found.append((load, limit))
        return found


class BothWays(NamedTuple):
    """A measurement of copies in both directions at once: the two edges, and the rate of each
    copy."""

    names: frozenset[str]
    copies: Sequence[Copy]
    rates: Sequence[float]
