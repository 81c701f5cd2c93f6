"""How a model is to be shared out, and by whom."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

from glake.trainer.configurable import Configurable, Natural
from glake.trainer.fsdp.ours import Ours
from glake.trainer.fsdp.peer import Peer
from glake.trainer.fsdp.sharded import Sharded

Dtype = Literal["float32", "bfloat16", "float16"]


class Sharding(Configurable):
    """Its Config.build() makes the Sharded model that `fsdp` names."""

    @dataclass(kw_only=True)
    class Config(Configurable.Config):
        """How a model is shared out.

        fsdp: glake's FSDP, or PyTorch's fully_shard behind the same contract.
        reshard_after_forward: free a block's parameters between forward and backward.
        compute_dtype: of gathered parameters and of blocks' inputs; None: the parameters' own.
        reduce_dtype: in which gradients are summed; None: the parameters' own.
        prefetch: how many blocks are gathered before they are needed.
        offload: keep shares of parameters (and so gradients and the optimizer), or only the
            optimizer's state, in host memory.
        recompute: keep only a block's input for its backward pass, and run it again there.
        activation_offload: keep what the backward pass needs in host memory.
        """

        fsdp: Literal["ours", "torch"] = "ours"
        reshard_after_forward: bool = True
        compute_dtype: Dtype | None = None
        reduce_dtype: Dtype | None = None
        prefetch: Natural = 1
        offload: Literal["none", "parameters", "optimizer"] = "none"
        recompute: bool = False
        activation_offload: bool = False

        def build(self, *args: Any, **context: Any) -> Sharded:
            """The sharded model: build(model, group=None, device=None).

            The model's blocks are sharded in place; one on the meta device is made here. `group`:
            None for all ranks, or one process alone. `device`: None for this process's GPU where
            there is one. Parameters that are not on the meta device must be equal on all ranks.
            """
            kinds: dict[str, type[Sharded]] = {"ours": Ours, "torch": Peer}
            return kinds[self.fsdp](copy.deepcopy(self), *args, **context)
