"""Replaces parts of packages and restores them, and finds packages' versions."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from glake.allocator.regions import outside
from glake.allocator.sharing import contiguous


def version_of(package: str, *distributions: str) -> str:
    """The version in a distribution's metadata, or else in the package itself, as a checkout has no
    metadata.

    Args:
        package: as it is imported.
        distributions: the names it may be installed under.

    Raises:
        ModuleNotFoundError: it is neither installed nor on the path.
        PackageNotFoundError: it is there, and does not say its version.
    """
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    found = getattr(importlib.import_module(package), "__version__", None)
    if found is None:
        raise metadata.PackageNotFoundError(package)
    return str(found)


@contextlib.contextmanager
def single_allocations() -> Iterator[None]:
    """Allocates blocks that NCCL can register, for a package's own buffers.

    They are in no region, even where the job is in one: it could not be paused with them, and
    buffers outlive it.
    """
    with outside(), contiguous():
        yield


def replace(made: contextlib.ExitStack, owner: Any, name: str, ours: Any) -> None:
    """Replaces an attribute of a class, module or object, until `made` is closed.

    What was there comes back then, unless somebody has set another meanwhile: that one stays.
    """
    before = vars(owner).get(name)
    setattr(owner, name, ours)

    def back() -> None:
        if vars(owner).get(name) is not ours:
            return
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    made.callback(back)


def replace_item(made: contextlib.ExitStack, table: dict[str, Any], name: str, ours: Any) -> None:
    """The same for an entry of a dict."""
    before = table.get(name)
    table[name] = ours

    def back() -> None:
        if table.get(name) is not ours:
            return
        if before is None:
            del table[name]
        else:
            table[name] = before

    made.callback(back)
