"""WSAM (arXiv 2305.15817): sharpness of the loss as a weighted regularisation term, decoupled.

    g = gradient at w;  g' = gradient at w + rho * g / |g|
    w takes the base optimizer's step with g, and then  w -= lr * gamma / (1 - gamma) * (g' - g)

So every step costs two forward and backward passes. gamma 0 is the base optimizer, 1/2 is SAM with
its ascent decoupled. Written from the paper's Algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glake.errors import InvalidArgument
from glake.trainer.configurable import Positive, SharePart, child
from glake.trainer.optimizers.base import AdamW, Decayed, Norm, Optimizer, local_norm


class WSAMOptimizer(torch.optim.Optimizer):
    """It wraps a base optimizer and shares that optimizer's groups and state. It has no state
    of its own.

    step(closure) takes the present gradients as g. `closure` must zero them and compute them again
    on the same batch, with the same clipping and reduction.
    """

    takes_closure = True

    def __init__(
        self, base: torch.optim.Optimizer, rho: float, gamma: float, norm: Norm | None = None
    ) -> None:
        super().__init__(base.param_groups, base.defaults)
        self.base, self.rho, self.weight = base, rho, gamma / (1 - gamma)
        self.norm = norm or local_norm
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            raise InvalidArgument("a WSAM step needs a closure that computes the gradients again")
        moved = self._climb()
        with torch.enable_grad():
            loss = closure()
        sharpness = []
        for own, was, gradient in moved:
            own.copy_(was)  # subtracting would not restore it exactly
            sharpness.append(torch.zeros_like(was) if own.grad is None else own.grad - gradient)
            own.grad = gradient  # the closure may have given it another tensor
        self.base.step()
        rates = {id(own): group["lr"] for group in self.param_groups for own in group["params"]}
        for (own, _, _), change in zip(moved, sharpness, strict=True):
            own.sub_(change, alpha=rates[id(own)] * self.weight)
        return loss

    def _climb(self) -> list[tuple[Any, Tensor, Tensor]]:
        """Moves the parameters by rho along the gradient. Returns (parameter, its former value, its
        gradient) of each."""
        owned = [own for group in self.param_groups for own in group["params"]]
        moved = [(own, own.clone(), own.grad.clone()) for own in owned if own.grad is not None]
        scale = self.rho / (self.norm([gradient for _, _, gradient in moved]) + 1e-12)
        for own, _, gradient in moved:
            own.add_(gradient * scale.to(gradient.device))
        return moved


class WSAM(Optimizer):
    class Config(Optimizer.Config):
        base: Decayed.Config = child(AdamW.Config)  # its rate is WSAM's too
        rho: Positive = 0.05
        gamma: SharePart = 0.9

        def build(self, named_parameters: Any, norm: Norm | None = None) -> torch.optim.Optimizer:
            return WSAMOptimizer(self.base.build(named_parameters), self.rho, self.gamma, norm)
