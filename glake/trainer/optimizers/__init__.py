"""Optimizers as parts: torch's AdamW, AGD and WSAM, and the schedule of learning rates."""

from glake.trainer.optimizers.agd import AGD
from glake.trainer.optimizers.base import AdamW, Optimizer
from glake.trainer.optimizers.schedule import Schedule
from glake.trainer.optimizers.wsam import WSAM

__all__ = ["AGD", "WSAM", "AdamW", "Optimizer", "Schedule"]
