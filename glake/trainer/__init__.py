"""A small FSDP trainer over glake. Configs build its parts (docs/trainer.md).

Importing it does not import torch. Each name is fetched from its module when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glake.trainer.configurable import Configurable, child
    from glake.trainer.loop import Experiment, Outcome, train

_HOME = {
    "Configurable": "configurable",
    "Experiment": "loop",
    "Outcome": "loop",
    "child": "configurable",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'glake.trainer' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"glake.trainer.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


__all__ = ["Configurable", "Experiment", "Outcome", "child", "train"]
