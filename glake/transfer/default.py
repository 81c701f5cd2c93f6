"""Functions that use the process's engine. The first call opens the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from glake.transfer import files
from glake.transfer.engine import default_engine
from glake.transfer.handle import Transfer
from glake.transfer.nodes import stats as nodes

if TYPE_CHECKING:
    from glake.typing import Array, BlockArray, BlockIndex, CopyStream, TransferStats


def copy(
    dst: Array, src: Array, stream: CopyStream = None, direct: bool = False, checksum: bool = False
) -> Transfer:
    """Copies `src` into `dst`. The destination comes first, as in `dst[:] = src`.

    Args:
        dst: written to. Engine.copy says what it may be.
        src: read.
        stream: the copy begins after the work on it, and later work there waits for the copy. None:
            the current streams of the GPU arrays' frameworks. UNORDERED: it begins at once.
        direct: make one plain copy, for comparison.
        checksum: read both ends again and compare them.

    Raises:
        GlakeError: as of Engine.copy, and of Engine where it is opened.
    """
    return default_engine().copy(dst, src, stream, direct, checksum)


def copy_batch(pairs: Iterable[tuple[Array, Array]], stream: CopyStream = None) -> Transfer:
    """Copies each (dst, src). Pairs between the same places are one transfer: Engine.copy_batch.

    Args:
        pairs: (dst, src) of each copy. None may write what another reads or writes.
        stream: as of copy().

    Raises:
        GlakeError: as of Engine.copy_batch, and of Engine where it is opened.
    """
    return default_engine().copy_batch(pairs, stream)


def gather(
    dst: Array, blocks: BlockArray, index: BlockIndex = None, stream: CopyStream = None
) -> Transfer:
    """Copies blocks, one after another, into the contiguous `dst`: Engine.gather.

    Args:
        dst: contiguous, of exactly the blocks' bytes.
        blocks: an array, whose blocks lie along its first dimension, or `Blocks`.
        index: numbers of the blocks, in order; None: all.
        stream: as of copy().

    Raises:
        GlakeError: as of Engine.gather, and of Engine where it is opened.
    """
    return default_engine().gather(dst, blocks, index, stream)


def scatter(
    blocks: BlockArray, src: Array, index: BlockIndex = None, stream: CopyStream = None
) -> Transfer:
    """Copies the contiguous `src` into blocks: Engine.scatter.

    Args:
        blocks: an array, whose blocks lie along its first dimension, or `Blocks`.
        src: contiguous, of exactly the blocks' bytes.
        index: numbers of the blocks, in order and each once; None: all.
        stream: as of copy().

    Raises:
        GlakeError: as of Engine.scatter, and of Engine where it is opened.
    """
    return default_engine().scatter(blocks, src, index, stream)


def stats() -> TransferStats:
    """The figures of all engines that the process has had.

    Returns:
        The figures of Engine.stats(). Under "files" they are of all file engines, and under "nodes"
        of all nodes.

    Raises:
        GlakeError: as of Engine, where it is opened.
    """
    return {**default_engine().stats(), "files": files.stats(), "nodes": nodes.totals()}
