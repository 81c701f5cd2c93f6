"""Real text of varying length: the functions and classes of Python's own standard library.

Batches are bucketed by length, as training on documents does: the sequences of one batch are of
similar length and padded to its longest, and from step to step that length varies.
"""

from __future__ import annotations

import random
import re
import sysconfig
from pathlib import Path

SHORTEST = 64  # bytes; less is not worth a sequence
POOL = 32  # batches sorted by length together
# A document begins at a def or class of a module or of a class in it.
_BOUNDARY = re.compile(rb"\n(?=(?:    )?(?:async def|def|class) )")


def documents(longest: int) -> list[bytes]:
    """The library's pieces, of SHORTEST to `longest` bytes, the longer ones cut; a fixed order.

    Raises FileNotFoundError where Python comes without its sources.
    """
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(library.glob("*.py"))
    if not sources:
        raise FileNotFoundError(f"no Python sources in {library} to train on")
    pieces = [piece for path in sources for piece in _BOUNDARY.split(path.read_bytes())]
    return [piece[:longest] for piece in pieces if len(piece) >= SHORTEST]


def batches(texts: list[bytes], sequences: int, count: int, seed: int) -> list[list[bytes]]:
    """`count` batches of `sequences` texts of similar length, in an order drawn from `seed`."""
    draw = random.Random(seed)
    made: list[list[bytes]] = []
    while len(made) < count:
        pool = draw.sample(texts, min(len(texts), POOL * sequences))
        pool.sort(key=len)
        cut = [pool[at : at + sequences] for at in range(0, len(pool), sequences)]
        whole = [batch for batch in cut if len(batch) == sequences]
        if not whole:
            raise ValueError(f"{len(texts)} texts do not make a batch of {sequences}")
        draw.shuffle(whole)
        made += whole
    return made[:count]


def length(batch: list[bytes]) -> int:
    """Tokens of each padded sequence: a text's bytes but the last, which is only predicted."""
    return max(len(text) for text in batch) - 1


def padded(batch: list[bytes], filler: int) -> tuple[list[list[int]], list[list[int]]]:
    """Token rows and their next tokens, each length(batch) long; `filler` pads the latter."""
    size = length(batch)
    tokens = [list(text[:-1]) + [0] * (size + 1 - len(text)) for text in batch]
    targets = [list(text[1:]) + [filler] * (size + 1 - len(text)) for text in batch]
    return tokens, targets
