"""Arguments of several calls, checked."""

from typing import Any

from glake.errors import InvalidArgument


def flag(name: str, value: Any) -> bool:
    """True or False. InvalidArgument for anything else: "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} {value!r}: True or False")
    return value
