"""AGD (arXiv 2312.01658): a step is divided by the recent change of the mean gradient.

Let m be the moving mean of gradients, and s the difference of its two latest values. Both are
corrected for their start at zero. Let b be the moving mean of s squared. For each element a step is

    w -= lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / max(sqrt(b), delta * sqrt(1 - beta2**t))

If b is below the threshold, the step is that of SGD with momentum: the automatic switch. Written
from the paper's Algorithm 1. Weight decay is as in AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glake.trainer.configurable import Positive
from glake.trainer.optimizers.base import Betas, Decayed, Norm


class AGDOptimizer(torch.optim.Optimizer):
    """The optimizer works element by element, so pieces of parameters take the same steps as whole
    ones."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        delta: float = 1e-14,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "delta": delta, "weight_decay": weight_decay}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for own in group["params"]:
                if own.grad is not None:
                    self._step_one(own, own.grad, group)
        return loss

    def _step_one(self, own: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[own]
        if not state:
            state["step"] = torch.tensor(0.0, device="cpu")  # so that reading it waits for no GPU
            state["exp_avg"] = torch.zeros_like(own)
            state["exp_avg_sq"] = torch.zeros_like(own)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        step, mean, square = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
        correction, root = 1 - beta1**step, math.sqrt(1 - beta2**step)
        before = 1 - beta1 ** (step - 1)

        change = mean / -before if before else torch.zeros_like(mean)
        mean.lerp_(gradient.to(mean.dtype), 1 - beta1)
        change.add_(mean, alpha=1 / correction)
        square.mul_(beta2).addcmul_(change, change, value=1 - beta2)
        divisor = torch.sqrt(square, out=change).clamp_(min=group["delta"] * root)
        own.mul_(1 - group["lr"] * group["weight_decay"])
        own.addcdiv_(mean, divisor, value=-group["lr"] * root / correction)


class AGD(Decayed):
    class Config(Decayed.Config):
        betas: Betas = (0.9, 0.999)
        delta: Positive = 1e-14  # the paper's for transformers

        def build(self, named_parameters: Any, norm: Norm | None = None) -> torch.optim.Optimizer:
            return AGDOptimizer(self.groups(named_parameters), self.lr, self.betas, self.delta)
