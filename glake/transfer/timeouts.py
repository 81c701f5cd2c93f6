"""Checks timeouts in the form that every `wait` takes."""

from numbers import Real
from typing import Any

from glake.errors import InvalidArgument

_ENDLESS = 1e9  # seconds (31 years): more means no end, and would overflow the clock


def seconds(timeout: object) -> float | None:
    """The timeout in seconds, or None for no end. Infinity means no end too. Raises
    InvalidArgument."""
    if timeout is None:
        return None
    number: Any = timeout if isinstance(timeout, Real) else -1
    if not number >= 0:
        raise InvalidArgument(f"timeout {timeout!r}: seconds from 0 on, or None for no end")
    return None if number > _ENDLESS else float(number)
