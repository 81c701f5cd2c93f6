"""How GPUs and host memory are joined, and how fast: as found on the machine, or from a preset or
file.

docs/topology.md tells how. `sources` chooses; `discovery` reads the machine; `probe` measures it.
"""

from glake.transfer.topology.sources import (
    DEFAULT_PRESET,
    current,
    first_gpus,
    from_file,
    from_preset,
)
from glake.transfer.topology.topology import Topology

__all__ = ["DEFAULT_PRESET", "Topology", "current", "first_gpus", "from_file", "from_preset"]
