"""The nearest right name, for errors about a misspelt one."""

import difflib
from collections.abc import Iterable


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name in `names` that is most like `word`, if one is similar by at least `cutoff` (0 to
    1)."""
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The nearest name as a part of a sentence: " (did you mean 'x'?)", or "" if none is near."""
    near = nearest(word, names, cutoff)
    return f" (did you mean {near!r}?)" if near is not None else ""
