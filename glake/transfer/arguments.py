"""Arguments of several calls, checked."""

import operator
from typing import Any

from glake.errors import InvalidArgument


def whole(value: Any) -> int | None:
    """A whole number, NumPy's and torch's too, as an int; None for True, False and all else."""
    if type(value) is int:  # at once: small copies ask
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def flag(name: str, value: Any) -> bool:
    """True or False. InvalidArgument for anything else: "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} {value!r}: True or False")
    return value
