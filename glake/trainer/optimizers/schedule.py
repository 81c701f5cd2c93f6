"""The course of the learning rate: up during the warm-up, then down."""

from __future__ import annotations

import math
from typing import Literal

import torch

from glake.errors import InvalidOption
from glake.trainer.configurable import Configurable, Natural, Share


class Schedule(Configurable):
    """schedule(step) is the factor on the base rate for step 0, 1, ..."""

    class Config(Configurable.Config):
        warmup: Natural = 0  # steps of linear growth, from 1 / warmup to 1
        shape: Literal["constant", "linear", "cosine"] = "cosine"
        floor: Share = 0.1  # what remains at the last step

    def __init__(self, config: Config, *, steps: int) -> None:
        super().__init__(config)
        if config.warmup > steps:
            raise InvalidOption(f"warmup is {config.warmup}: take 0 to {steps}, the run's steps")
        self.steps = steps

    def __call__(self, step: int) -> float:
        config = self.config
        if step < config.warmup:
            return float((step + 1) / config.warmup)
        if config.shape == "constant":
            return 1.0
        last = max(1, self.steps - 1 - config.warmup)
        left = 1 - min(1.0, (step - config.warmup) / last)
        if config.shape == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        return float(config.floor + (1 - config.floor) * left)

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Sets each group's rate for a step, from the group's first rate. Returns the first group's
        rate.

        The rate depends on the step alone, so a checkpoint needs no state of the schedule.
        """
        factor = self(step)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        return float(optimizer.param_groups[0]["lr"])
