"""PyTorch's own FSDP (`fully_shard`) with the interface of Sharded, to compare glake's FSDP with
it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from glake.errors import InvalidArgument, InvalidOption
from glake.trainer.fsdp import materialise
from glake.trainer.fsdp.sharding import Sharded, Sharding, dtype_of


class Peer(Sharded, fsdp="torch"):
    """A model under `fully_shard`. Parameters are DTensors, which are sharded along their first
    dimension."""

    def __init__(self, config: Sharding.Config, model: nn.Module, group: Any, device: Any) -> None:
        if not dist.is_initialized():
            raise InvalidArgument(
                'fsdp = "torch" needs a process group, with one rank too: torchrun'
            )
        if config.activation_offload or config.offload == "optimizer":
            raise InvalidOption(
                'fsdp = "torch" keeps neither activations nor the optimizer\'s state alone in host '
                'memory: take fsdp = "ours", or leave out activation_offload and offload'
            )
        super().__init__(config, model, group, device)
        blocks, slots = materialise.blocks_of(model), materialise.slots_of(model)
        for unit in materialise.drawn(model, slots, self.device):
            slots[unit].clear()  # they hold whole parameters
            if unit in blocks:
                if config.recompute:
                    forward = blocks[unit].forward
                    blocks[unit].forward = functools.partial(
                        checkpoint, forward, use_reentrant=False
                    )
                self._shard(blocks[unit], reshard_after_forward=config.reshard_after_forward)
        self._shard(model)

    def _shard(self, module: Any, **options: Any) -> None:
        config = self.config
        if config.offload == "parameters":
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        policy = MixedPrecisionPolicy(
            param_dtype=dtype_of(config.compute_dtype), reduce_dtype=dtype_of(config.reduce_dtype)
        )
        fully_shard(module, mesh=self._ranks.mesh(self.device.type), mp_policy=policy, **options)
        # Gradients are summed over ranks. By default fully_shard would take the mean.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    @torch.no_grad()
    def put(self, name: str, value: torch.Tensor) -> None:
        share: Any = dict(self.module.named_parameters())[name]
        parts = value.chunk(self._ranks.ranks)  # as Shard(0) deals them out
        if self._ranks.rank < len(parts):
            share.to_local().copy_(parts[self._ranks.rank])

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        self.module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            whole = parameter.detach().full_tensor()
            if self._ranks.rank == 0:
                yield name, whole.cpu()
