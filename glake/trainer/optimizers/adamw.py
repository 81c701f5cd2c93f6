"""torch's AdamW."""

from __future__ import annotations

from typing import Any

import torch

from glake.trainer.configurable import Positive
from glake.trainer.optimizers.base import Betas, Decayed, Norm


class AdamW(Decayed):
    class Config(Decayed.Config):
        betas: Betas = (0.9, 0.95)
        epsilon: Positive = 1e-8
        fused: bool = False  # torch's one kernel for all

        def build(self, named_parameters: Any, norm: Norm | None = None) -> torch.optim.Optimizer:
            groups, fused = self.groups(named_parameters), self.fused or None
            return torch.optim.AdamW(groups, self.lr, self.betas, self.epsilon, fused=fused)
