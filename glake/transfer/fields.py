"""Checks of the fields of messages, for every protocol. Each returns the value that it was given.

All raise BadMessage, which names the field, the value and the values that are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from glake.errors import BadMessage

T = TypeVar("T")


def refuse(field: str, value: Any, takes: str) -> NoReturn:
    """Raises an error that says that `field` does not take the value."""
    shown = repr(value)
    raise BadMessage(f"{field}: {shown[:60] + '...' if len(shown) > 63 else shown} is not {takes}")


def whole(field: str, value: Any, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        refuse(field, value, f"a whole number from {low} to {high}")
    return value


def number(field: str, value: Any, low: float, high: float) -> float:
    """A number from `low` to `high`."""
    if type(value) not in (int, float) or not low <= value <= high:
        refuse(field, value, f"a number from {low:g} to {high:g}")
    return float(value)


def text(field: str, value: Any, most: int) -> str:
    """Printable text."""
    if type(value) is not str or len(value) > most or not value.isprintable():
        refuse(field, value, f"a printable text of at most {most} characters")
    return value


def flag(field: str, value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        refuse(field, value, "true or false")
    return value


def listed(field: str, value: Any, most: int, each: Callable[[str, Any], T]) -> tuple[T, ...]:
    """A list. `each` checks each of its items."""
    if type(value) is not list or len(value) > most:
        refuse(field, value, f"a list of at most {most}")
    return tuple(each(f"{field}[{i}]", item) for i, item in enumerate(value))
