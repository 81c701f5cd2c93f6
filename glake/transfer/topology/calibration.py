"""The results of a probe, and the topology to which they are applied."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from glake.platforms import Joint, Platform, for_people
from glake.transfer.topology.rates import ESTIMATE
from glake.transfer.topology.topology import Topology

MEASURED = "measured by a probe"


@dataclass(frozen=True)
class Calibration:
    """Measured rates by edge name (GB/s), limits over several edges, and notes.

    `together` has sets of edges. Each set was measured at once, and its loads were not what the
    topology said. So `joint` replaces all limits over edges of such a set. `date` says when they
    were measured, as text; empty: unknown.
    """

    rates: Mapping[str, float]
    joint: tuple[Joint, ...] = ()
    notes: tuple[str, ...] = ()
    together: frozenset[frozenset[str]] = frozenset()
    date: str = ""

    def applied(self, topology: Topology) -> Topology:
        """The topology with these rates. Once every edge is measured, notes about estimates are
        dropped."""
        platform = self.on(topology.platform)
        edges = platform.edges
        missing = [edge.name for edge in edges if edge.name not in self.rates]
        kept = [note for note in platform.assumed if missing or not note.startswith(ESTIMATE)]
        when = f" on {self.date}" if self.date else ""
        kept += [f"rates {MEASURED}{when}", *self.notes]
        if missing:
            kept.append(f"not measured, as before the probe: {for_people(', '.join(missing))}")
        changed = replace(platform, assumed=tuple(kept))
        source = f"{topology.source}, probed{when}"
        return replace(topology, platform=changed, source=source)

    def on(self, platform: Platform) -> Platform:
        """The platform with these rates and limits, without notes on them."""
        edges = tuple(
            replace(edge, gb_per_s=self.rates.get(edge.name, edge.gb_per_s))
            for edge in platform.edges
        )
        return replace(platform, edges=edges, joint=(*self._kept(platform), *self.joint))

    def _kept(self, platform: Platform) -> list[Joint]:
        """Earlier limits that no measurement replaces. If their edges got faster, they rise with
        them."""
        measured = [*self.together, *(frozenset(dict(each.weights)) for each in self.joint)]
        before = {edge.name: edge.gb_per_s for edge in platform.edges}
        kept = []
        for joint in platform.joint:
            names = {name for name, _ in joint.weights}
            if any(names <= each for each in measured):
                continue
            faster = max(self.rates.get(name, before[name]) / before[name] for name in names)
            kept.append(replace(joint, gb_per_s=round(joint.gb_per_s * max(faster, 1.0), 2)))
        return kept
