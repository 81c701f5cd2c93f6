"""Sequence lengths of a job's batches: fixed, or drawn for each batch."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TAKES = "N, fixed:N, uniform:LO-HI, lognormal:MEDIAN,SIGMA,LO,HI or file:PATH (one length a line)"
_MOST = 1 << 24
_SIGMA_MOST = 10.0


@dataclass(frozen=True)
class Lengths:
    """A distribution of sequence lengths, in tokens. ``most`` is the largest length that can be
    drawn."""

    text: str
    most: int
    _draw: Callable[[random.Random], int] | tuple[int, ...]

    def series(self, seed: int, multiple: int = 1) -> Callable[[int], int]:
        """The length of batch i, for i = 0, 1, ... It is the same for the same seed, in any order.

        Lengths are rounded up to a multiple of ``multiple`` tokens. A file's lengths are taken in
        its order. After the last one they start again.
        """
        draw = self._draw
        if isinstance(draw, tuple):
            known = draw
            return lambda i: _padded(known[i % len(known)], multiple)
        chance = random.Random(seed)
        drawn: list[int] = []

        def length(i: int) -> int:
            while len(drawn) <= i:
                drawn.append(_padded(draw(chance), multiple))
            return drawn[i]

        return length


def _padded(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not 1 <= int(text) <= _MOST:
        raise ValueError(f"{text!r} is not a length from 1 to {_MOST:,} tokens")
    return int(text)


def _bounds(low: str, high: str) -> tuple[int, int]:
    if _whole(low) > _whole(high):
        raise ValueError(f"{low} is above {high}")
    return int(low), int(high)


def _lognormal(text: str) -> Lengths:
    parts = text.split(",")
    if len(parts) != 4:
        raise ValueError("lognormal takes four numbers: MEDIAN,SIGMA,LO,HI")
    median = _whole(parts[0])
    if not re.fullmatch(r"\d+(\.\d+)?", parts[1]) or float(parts[1]) > _SIGMA_MOST:
        raise ValueError(f"{parts[1]!r} is not a sigma from 0 to {_SIGMA_MOST:g}")
    sigma = float(parts[1])
    low, high = _bounds(parts[2], parts[3])

    def draw(chance: random.Random) -> int:
        return min(high, max(low, round(median * chance.lognormvariate(0.0, sigma))))

    return Lengths(f"lognormal:{text}", high, draw)


def _file(path: str) -> Lengths:
    try:
        lines = Path(path).read_text().split()
    except (OSError, UnicodeDecodeError) as bad:
        raise ValueError(f"cannot read {path!r}: {bad}") from bad
    if not lines:
        raise ValueError(f"{path!r} holds no length")
    try:
        known = tuple(_whole(line) for line in lines)
    except ValueError as bad:
        raise ValueError(f"{path!r}: {bad}") from bad
    return Lengths(f"file:{path}", max(known), known)


def parse(text: str) -> Lengths:
    """The distribution that ``text`` describes (``TAKES``). A ValueError says what is wrong."""
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        kind, rest = "fixed", text.strip()
    if kind == "fixed":
        return Lengths(text.strip(), _whole(rest), (_whole(rest),))
    if kind == "uniform":
        low, dash, high = rest.partition("-")
        if not dash:
            raise ValueError("uniform takes LO-HI")
        bounds = _bounds(low, high)
        return Lengths(f"uniform:{rest}", bounds[1], lambda chance: chance.randint(*bounds))
    if kind == "lognormal":
        return _lognormal(rest)
    if kind == "file":
        return _file(rest)
    raise ValueError(f"there is no distribution {kind!r}")
