"""The policies by which a trace can be replayed: their names, and what each is."""

from __future__ import annotations

import functools
import importlib
from typing import Literal, NamedTuple


class Policy(NamedTuple):
    """A policy of the core's list (csrc/replay/policies.cpp).

    ``kind`` is ``own`` (this library), ``model`` (of another allocator) or ``bound``. A bound
    places nothing, so it has no map, no driver calls and no host time.
    """

    name: str
    title: str
    kind: Literal["own", "model", "bound"]


@functools.cache
def known() -> dict[str, Policy]:
    """All policies by name."""
    rows = importlib.import_module("glake._C").replay_policies()
    return {row[0]: Policy(*row) for row in rows}


def named(policy: str) -> Policy:
    """The policy with this name, which may have a parameter (``gmlake:64MiB``).

    Raises:
        KeyError: there is none.
    """
    return known()[policy.partition(":")[0]]
