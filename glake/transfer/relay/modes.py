"""Which GPUs an engine may relay over, and which are a process's own, by its surroundings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from glake import config
from glake.errors import InvalidArgument

MODES = ("all", "lent", "own")


def chosen(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """One of MODES. InvalidArgument for another; InvalidOption, UnknownOption for variables."""
    environ = os.environ if environ is None else environ
    if given is not None:
        if given not in MODES:
            raise InvalidArgument(f"relays={given!r}: take one of {', '.join(MODES)}")
        return given
    named = config.read(environ).relays
    if named is not None:
        return named
    return "lent" if environ.get("LOCAL_WORLD_SIZE", "1") not in ("", "1") else "all"


def own_gpus(visible: int, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """The GPU that torchrun's convention gives this process, if it sees it."""
    environ = os.environ if environ is None else environ
    rank = environ.get("LOCAL_RANK", "")
    return (int(rank),) if rank.isdecimal() and int(rank) < visible else ()
