"""Sizes, times and shares in a form for readers."""

from __future__ import annotations

import os
import re

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


# Control characters except the line feed, marks and overrides of direction, and lone surrogates.
_STEERING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def size(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least one, with about 3 digits."""
    sign, value = ("-" if count < 0 else ""), abs(count)
    for unit in _UNITS:
        if value < 1023.5 or unit == _UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{sign}{value:.0f} B"
    digits = 2 if value < 100 else 1
    return f"{sign}{value:.{digits}f} {unit}"


def counted(count: int, one: str, more: str | None = None) -> str:
    """A number of things. ``one`` is their singular, and ``more`` their plural (by default with an
    s)."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def size_range(low: int, high: int) -> str:
    """Two sizes as a range, round ones without decimals: 512 B to 1 KiB."""
    return f"{round_size(low)} to {round_size(high)}"


def round_size(count: float) -> str:
    """Bytes as from size(), without decimals if these are zeros: 64 MiB."""
    return size(count).replace(".00 ", " ").replace(".0 ", " ")


def exact_size(count: int) -> str:
    """Bytes in the form that options take, in the largest unit of which they are a multiple:
    64MiB."""
    for power, unit in reversed(list(enumerate(_UNITS[1:4], 1))):
        if count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return f"{count}"


def scale(most: float) -> tuple[str, int]:
    """The unit for an axis that ends at `most` bytes, and the unit's bytes."""
    factor = 1
    for unit in _UNITS:
        if most < 1023.5 * factor or unit == _UNITS[-1]:
            break
        factor *= 1024
    return unit, factor


def micros(value: float) -> str:
    """A time given in microseconds."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} s"
    if value >= 1e3:
        return f"{value / 1e3:.1f} ms"
    return f"{value:.0f} us"


def nanos(value: float) -> str:
    """A time given in nanoseconds."""
    if value < 999.5:
        return f"{value:.0f} ns"
    return f"{value / 1000:.1f} us" if value < 99_950 else micros(value / 1000)


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def printable(text: str) -> str:
    r"""A file's text in a form for terminals. Characters that would control the terminal, or change
    the line's direction, are spelled out (\x1b). Line feeds stay."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def titled(path: str) -> str:
    """A file's name for a title. A pipe's name is only the number of its descriptor."""
    folder, name = os.path.split(printable(path))
    return f"pipe {name}" if folder in ("/dev/fd", "/proc/self/fd") else name


def times(part: float, whole: float) -> str:
    """A multiple."""
    return f"{part / whole:.3f} x" if whole else "-"
