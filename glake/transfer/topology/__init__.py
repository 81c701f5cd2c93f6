"""Says how GPUs and host memory are joined, and at what rates, from the machine, a preset or a
file.

docs/topology.md explains it. `sources` chooses, `discovery` reads the machine, and `probe` measures
it.
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
