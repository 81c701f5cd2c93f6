"""The options of sharding, and what the training loop needs of a sharded model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from glake.trainer.configurable import Configurable, Natural
from glake.trainer.fsdp.collectives import Collectives
from glake.trainer.fsdp.state import local

Dtype = Literal["float32", "bfloat16", "float16"]


class Sharding(Configurable):
    """The base of shardings. Its Config.build() makes the Sharded model that `fsdp` names."""

    class Config(Configurable.Config):
        """How a model is sharded.

        fsdp: glake's FSDP, or PyTorch's fully_shard behind the same contract.
        reshard_after_forward: free a block's parameters between forward and backward.
        compute_dtype: of gathered parameters and of blocks' inputs; None: the parameters' own.
        reduce_dtype: in which gradients are summed; None: the parameters' own.
        prefetch: how many blocks are gathered before they are needed.
        offload: keep shares of parameters (and so gradients and the optimizer), or only the
            optimizer's state, in host memory.
        recompute: keep only a block's input for its backward pass, and compute the block again
            there.
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

        def build(self, model: nn.Module, group: Any = None, device: Any = None) -> Sharded:
            """The sharded model.

            The model's blocks are sharded in place. Parameters on the meta device get their first
            values here. Other parameters must be equal on all ranks. `group` is the ranks' process
            group; None: all ranks, or one process alone. `device` is the device to use; None: this
            process's GPU if it has one.
            """
            return Sharded.kinds[self.fsdp](copy.deepcopy(self), model, group, device)


class Sharded:
    """A model that is sharded over ranks.

    Gradients are sums over ranks and over the passes since the optimizer's last zero_grad();
    clip_gradients() scales them.
    """

    kinds: ClassVar[dict[str, type[Sharded]]] = {}  # by the option `fsdp`
    state: Any = None  # a State, for checkpoints; PyTorch's FSDP keeps none here

    def __init_subclass__(cls, fsdp: str) -> None:
        cls.kinds[fsdp] = cls

    def __init__(self, config: Sharding.Config, model: nn.Module, group: Any, device: Any) -> None:
        self.config, self.device = config, _device_of(device)
        self.module: Any = model
        self._ranks = Collectives(group, self.device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model."""
        return self.module(*args, **kwargs)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that an optimizer updates: this rank's parts, by name."""
        raise NotImplementedError

    def accumulate(self) -> AbstractContextManager[None]:
        """In this context backward passes keep their gradients for the next pass outside it."""
        raise NotImplementedError

    def norm_of(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The norm of all ranks' tensors together, in float32. Each rank gives its own."""
        squares = torch.zeros((), dtype=torch.float32, device=self.device)
        if tensors:
            norms = torch._foreach_norm(tensors, 2, dtype=torch.float32)
            squares = torch.stack(norms).square().sum().to(self.device)
        return self._ranks.total(squares).sqrt()

    def clip_gradients(self, max_norm: float | None, scale: float = 1.0) -> torch.Tensor:
        """Multiplies gradients by `scale` and clips them. Returns their norm before clipping."""
        gradients = [local(own.grad) for _, own in self.named_parameters() if own.grad is not None]
        norm = self.norm_of(gradients) * scale
        factor: Any = scale
        if max_norm is not None:
            factor = scale * torch.clamp(max_norm / (norm + 1e-6), max=1.0)
            if gradients:
                factor = factor.to(gradients[0].device)  # the host, if gradients are offloaded
        if gradients and (max_norm is not None or scale != 1.0):
            torch._foreach_mul_(gradients, factor)
        return norm

    def attach(self, optimizer: Any) -> None:
        """Takes the optimizer of these parameters. With `offload` its state is kept in host
        memory."""

    def put(self, name: str, value: torch.Tensor) -> None:
        """Sets a parameter from its whole values. This rank keeps its part of them."""
        raise NotImplementedError

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole parameters in host memory on rank 0, and none on other ranks. All ranks must
        iterate."""
        raise NotImplementedError


def _device_of(given: Any) -> torch.device:
    """The device to use: the given one, else this process's GPU, else the CPU."""
    device = torch.device(given or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def dtype_of(name: str | None) -> torch.dtype | None:
    """torch's dtype with that name."""
    return None if name is None else getattr(torch, name)
