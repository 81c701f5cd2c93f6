"""One copy over every useful path of a node at once. Each name is fetched when first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glake.transfer.bounds import bound, joint_bound
    from glake.transfer.planning import Plan, plan

_HOME = {
    "Plan": "planning",
    "bound": "bounds",
    "joint_bound": "bounds",
    "plan": "planning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'glake.transfer' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"glake.transfer.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


__all__ = ["Plan", "bound", "joint_bound", "plan"]
