"""Fully sharded data parallelism: every rank keeps a share of each parameter (docs/trainer.md).

Read in this order: `sharding` (the options, and the contract), `flat` (how parameters lie
in memory), `unit` (what happens around a block's forward and backward pass), `schedule` (when
gathers and reductions go), `collectives`, then `state`, `offload`, `materialise` and `peer`
(PyTorch's own).
"""

from glake.trainer.fsdp import ours, peer  # noqa: F401 - the kinds that Sharding builds
from glake.trainer.fsdp.sharding import Sharding

__all__ = ["Sharding"]
