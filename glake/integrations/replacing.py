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
    """The version in a distribution's metadata. If there is none, as in a checkout, that in the
    package itself.

    Args:
        package: the name by which it is imported.
        distributions: names under which it may be installed.

    Raises:
        ModuleNotFoundError: it is neither installed nor on the path.
        PackageNotFoundError: the package exists, but does not say its version.
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
    """A context in which blocks can be registered with NCCL, for a package's own buffers.

    The blocks are in no region, even if one is open. A region could not be paused with such blocks,
    and the buffers outlive it.
    """
    with outside(), contiguous():
        yield


def replace(made: contextlib.ExitStack, owner: Any, name: str, ours: Any) -> None:
    """Replaces an attribute of a class, module or object, until `made` is closed.

    Then the former value comes back, unless somebody has set another value meanwhile.
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
    """Replaces an entry of a dict in the same way."""
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
