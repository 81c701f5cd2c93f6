"""The verbs on the process's engine, which the first of them opens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glake.transfer import files
from glake.transfer.engine import Stream, default_engine
from glake.transfer.handle import Transfer
from glake.transfer.nodes import stats as nodes


def copy(
    dst: Any, src: Any, stream: Stream = None, direct: bool = False, checksum: bool = False
) -> Transfer:
    """Copies `src` INTO `dst`: the destination first, as in `dst[:] = src`. Both may be named.
    Engine.copy tells the rest."""
    return default_engine().copy(dst, src, stream, direct, checksum)


def copy_batch(pairs: Iterable[tuple[Any, Any]], stream: Stream = None) -> Transfer:
    """Copies each (dst, src): Engine.copy_batch."""
    return default_engine().copy_batch(pairs, stream)


def gather(dst: Any, blocks: Any, index: Any = None, stream: Stream = None) -> Transfer:
    """Copies blocks one after another into the contiguous `dst`: Engine.gather."""
    return default_engine().gather(dst, blocks, index, stream)


def scatter(blocks: Any, src: Any, index: Any = None, stream: Stream = None) -> Transfer:
    """Copies the contiguous `src` into blocks: Engine.scatter."""
    return default_engine().scatter(blocks, src, index, stream)


def stats() -> dict[str, Any]:
    """Copies and bytes so far, and every path's bytes, chunks and state: Engine.stats. Under
    "files", what all file engines have read and written: FileStats; under "nodes", what all nodes
    have done: NodeStats."""
    return default_engine().stats() | {"files": files.stats(), "nodes": nodes.totals()}
