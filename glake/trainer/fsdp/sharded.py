"""The contract: what the training loop asks of a sharded model, whoever shards it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from glake.trainer.fsdp.collectives import Collectives

if TYPE_CHECKING:
    from glake.trainer.fsdp.sharding import Sharding


class Sharded:
    """A model shared out among ranks.

    Gradients are sums over ranks and over the passes since the optimizer's last zero_grad();
    clip_gradients() scales them.
    """

    def __init__(self, config: Sharding.Config) -> None:
        self.config = config

    module: nn.Module
    state: Any = None  # a State, for checkpoints; PyTorch's FSDP keeps none here
    device: torch.device
    _ranks: Collectives

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model."""
        return self.module(*args, **kwargs)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What an optimizer updates: this rank's parts of parameters, by their names."""
        raise NotImplementedError

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes in this context keep their gradients for the next one outside it."""
        raise NotImplementedError

    def _gradients(self) -> list[torch.Tensor]:
        """This rank's parts of gradients."""
        raise NotImplementedError

    def norm_of(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The norm of all ranks' tensors together, in float32; each rank gives its own."""
        squares = torch.zeros((), dtype=torch.float32, device=self.device)
        if tensors:
            norms = torch._foreach_norm(tensors, 2, dtype=torch.float32)
            squares = torch.stack(norms).square().sum().to(self.device)
        return self._ranks.total(squares).sqrt()

    def clip_gradients(self, max_norm: float | None, scale: float = 1.0) -> torch.Tensor:
        """Multiplies gradients by `scale` and clips them; returns their norm before clipping."""
        gradients = self._gradients()
        norm = self.norm_of(gradients) * scale
        factor: Any = scale
        if max_norm is not None:
            factor = scale * torch.clamp(max_norm / (norm + 1e-6), max=1.0)
            if gradients:
                factor = factor.to(gradients[0].device)  # the host's, where they are offloaded
        if gradients and (max_norm is not None or scale != 1.0):
            torch._foreach_mul_(gradients, factor)
        return norm

    def attach(self, optimizer: Any) -> None:
        """Tells of the optimizer that was built; with offload its state lives in host memory."""

    def put(self, name: str, value: torch.Tensor) -> None:
        """Takes over a whole parameter's values, of which this rank keeps its part."""
        raise NotImplementedError

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole parameters in host memory on rank 0, none elsewhere; all ranks must iterate."""
        raise NotImplementedError


def device_of(given: Any) -> torch.device:
    """The device to use: the one given, else this process's GPU, else the CPU."""
    if given is not None:
        device = torch.device(given)
    else:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def dtype_of(name: str | None) -> torch.dtype | None:
    """torch's dtype of that name."""
    return None if name is None else getattr(torch, name)
