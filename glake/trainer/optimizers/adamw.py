"""torch's AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from glake.trainer.configurable import Positive
from glake.trainer.optimizers.base import Betas, Decayed, Norm


class AdamW(Decayed):
    @dataclass(kw_only=True)
    class Config(Decayed.Config):
        betas: Betas = (0.9, 0.95)
        epsilon: Positive = 1e-8
        kernels: Literal["auto", "each", "foreach", "fused"] = "auto"  # auto is torch's choice

        def build(self, named_parameters: Any, norm: Norm | None = None) -> torch.optim.Optimizer:
            chosen = {} if self.kernels == "auto" else {"foreach": self.kernels == "foreach"}
            if self.kernels == "fused":
                chosen = {"fused": True}
            return torch.optim.AdamW(
                self.groups(named_parameters), self.lr, self.betas, self.epsilon, **chosen
            )
