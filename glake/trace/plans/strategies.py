"""Chooses the engine of a plan's strategy: one GPU, copies of the model, or shards of it."""

from __future__ import annotations

from typing import Any

from glake.errors import InvalidOption
from glake.trace.plans.configs import Model
from glake.trace.plans.engines import DataParallel, Engine, FullyShard
from glake.trace.plans.options import PlanOptions


def make(job: Any, model: Model, options: PlanOptions, *, head: str = "lm") -> Any:
    """The engine of ``options.strategy``. Raises what building the model raises."""
    if options.strategy == "zero3":
        from glake.trace.plans.zero3 import Zero3

        return Zero3(job, model, options)
    kinds = {"single": Engine, "ddp": DataParallel, "fsdp2": FullyShard}
    if options.strategy not in kinds:
        raise InvalidOption(f"strategy={options.strategy}: one of {', '.join(kinds)}, zero3")
    return kinds[options.strategy](job, model, options, head=head)
