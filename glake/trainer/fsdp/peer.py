"""PyTorch's own FSDP (`fully_shard`) behind the same contract: what ours is compared with."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from glake.errors import InvalidArgument, InvalidOption
from glake.trainer.fsdp import materialise
from glake.trainer.fsdp.collectives import Collectives
from glake.trainer.fsdp.sharded import Sharded, device_of, dtype_of

if TYPE_CHECKING:
    from glake.trainer.fsdp.sharding import Sharding


class Peer(Sharded):
    """A model under `fully_shard`: parameters are DTensors, sharded along their first dimension."""

    def __init__(
        self, config: Sharding.Config, model: nn.Module, group: Any = None, device: Any = None
    ) -> None:
        super().__init__(config)
        if not dist.is_initialized():
            raise InvalidArgument(
                'fsdp = "torch" needs a process group, with one rank too: torchrun'
            )
        if config.activation_offload or config.offload == "optimizer":
            raise InvalidOption(
                'fsdp = "torch" keeps neither activations nor the optimizer\'s state alone in host '
                'memory: take fsdp = "ours", or leave out activation_offload and offload'
            )
        self.module: Any = model
        self.device = device_of(device)
        self._ranks = Collectives(group, self.device)
        units = materialise.origins_of(model)
        drawing = materialise.resets(model, units)
        self._shard(model, config)
        if any(parameter.is_meta for parameter in model.parameters()):
            self._materialise(drawing)

    def _shard(self, model: nn.Module, config: Sharding.Config) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        options: dict[str, Any] = {
            "mesh": self._ranks.mesh(self.device.type),
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=dtype_of(config.compute_dtype),
                reduce_dtype=dtype_of(config.reduce_dtype),
            ),
        }
        if config.offload == "parameters":
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        for block in materialise.blocks_of(model).values():
            if config.recompute:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
            fully_shard(block, reshard_after_forward=config.reshard_after_forward, **options)
            _sum_gradients(block)
        fully_shard(model, **options)
        _sum_gradients(model)

    def _materialise(self, drawing: Mapping[str, list[tuple[str, nn.Module]]]) -> None:
        """First values, drawn whole as glake's FSDP draws them: the modules of a unit at a time,
        and every rank keeps its share."""
        materialise.buffers_to(self.module, self.device)
        home = torch.device("cpu") if self.config.offload == "parameters" else self.device
        self.module._apply(lambda own: torch.empty_like(own, device=home) if own.is_meta else own)
        for modules in drawing.values():
            self._draw(modules)

    @torch.no_grad()
    def _draw(self, modules: list[tuple[str, nn.Module]]) -> None:
        wholes: dict[Any, nn.Parameter] = {}  # by the share, which two modules may have in common
        shares = [(module, dict(module._parameters)) for _, module in modules]
        for module, own in shares:
            for name, share in own.items():
                if share is not None:
                    empty = torch.empty(share.shape, dtype=share.dtype, device=self.device)
                    made = nn.Parameter(empty, requires_grad=share.requires_grad)
                    module._parameters[name] = wholes.setdefault(share, made)
        for path, module in modules:
            materialise.reset(path, module)
        for share, whole in wholes.items():
            self._put(share, whole)
        for module, own in shares:
            module._parameters.update(own)

    @torch.no_grad()
    def put(self, name: str, value: torch.Tensor) -> None:
        self._put(dict(self.module.named_parameters())[name], value)

    def _put(self, share: Any, whole: torch.Tensor) -> None:
        parts = whole.chunk(self._ranks.ranks)  # as Shard(0) deals them out
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

    def _gradients(self) -> list[torch.Tensor]:
        grads: list[Any] = [each.grad for each in self.module.parameters()]
        return [grad.to_local() for grad in grads if grad is not None]

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            whole = parameter.detach().full_tensor()
            if self._ranks.rank == 0:
                yield name, whole.cpu()


def _sum_gradients(module: Any) -> None:
    """Over ranks, where fully_shard would take their mean."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
