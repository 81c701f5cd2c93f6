"""vLLM's tier of files, `"type": "glake"`: blocks read and written by glake's file engine.

Names of files, look-ups and events are those of vLLM's own tier "fs", so that each reads what the
other has written. Imported by vLLM, which it imports.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from glake.errors import FileFailed, GlakeError, InvalidArgument
from glake.integrations import figures
from glake.transfer.files import FileEngine, FileTransfer

log = logging.getLogger("glake.vllm")


@dataclass
class _Block:
    """One block on its way. `temporary` is what a store writes until it is whole."""

    path: str
    temporary: str = ""
    transfer: FileTransfer | None = None
    error: GlakeError | OSError | None = None

    def done(self) -> bool:
        return self.transfer is None or self.transfer.done()

    def finish(self) -> None:
        """Waits; a stored block gets its name. FileFailed, or OSError of the renaming."""
        if self.error is not None:
            raise self.error
        if self.transfer is not None:
            self.transfer.wait()
        if self.temporary:
            os.replace(self.temporary, self.path)


@dataclass
class _Job:
    begun: float = field(default_factory=time.monotonic)
    blocks: list[_Block] = field(default_factory=list)


class FileJobs:
    """Jobs of many blocks, each a file: what vLLM's tier has its pool of threads for.

    Args:
        depth: requests under way at once, in all jobs.
    """

    def __init__(self, depth: int) -> None:
        self._engine = FileEngine(depth=depth)
        self._jobs: dict[int, _Job] = {}
        self._numbers = itertools.count()
        self.loaded: dict[int, int] = {}  # of loads that failed: blocks before the first that did

    def store(self, number: int, paths: Sequence[str], parts: Sequence[memoryview]) -> None:
        """Begins to write blocks that are not there yet."""
        job = self._jobs[number] = _Job()
        for path, part in zip(paths, parts, strict=True):
            if os.path.exists(path):
                continue
            block = _Block(path, f"{path}.{os.getpid()}.{next(self._numbers)}.tmp")
            job.blocks.append(block)
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                block.transfer = self._engine.write(block.temporary, part)
                figures.add("vllm", "tier_written_bytes", part.nbytes)
            except (GlakeError, OSError) as error:
                block.error = error

    def load(self, number: int, paths: Sequence[str], parts: Sequence[memoryview]) -> None:
        """Begins to read blocks."""
        job = self._jobs[number] = _Job()
        self.loaded[number] = 0
        for path, part in zip(paths, parts, strict=True):
            block = _Block(path)
            job.blocks.append(block)
            try:
                block.transfer = self._engine.read(path, part)
                figures.add("vllm", "tier_read_bytes", part.nbytes)
            except GlakeError as error:
                block.error = error

    def get_finished(self) -> list[tuple[int, bool, float]]:
        """(job, whether all of it went well, seconds) of the jobs that are over."""
        over = [number for number, job in self._jobs.items() if all(map(_Block.done, job.blocks))]
        return [self._finished(number) for number in over]

    def wait_idle(self) -> None:
        """Returns when nothing is read or written any more; get_finished() tells of it."""
        for job in self._jobs.values():
            for block in job.blocks:
                if block.transfer is not None:
                    with contextlib.suppress(GlakeError):  # told by get_finished()
                        block.transfer.wait()

    def shutdown(self, wait: bool = True) -> None:
        """Waits for all jobs; what is whole keeps its name."""
        self.wait_idle()
        self.get_finished()
        self._engine.close()

    def _finished(self, number: int) -> tuple[int, bool, float]:
        job = self._jobs.pop(number)
        failed: Exception | None = None
        for at, block in enumerate(job.blocks):
            try:
                block.finish()
            except (GlakeError, OSError) as error:
                _clear(block, error)
                if failed is None:
                    failed = error
                    if number in self.loaded:
                        self.loaded[number] = at
        if failed is not None:
            log.warning("KV tier job %d has failed: %s", number, failed)
        else:
            self.loaded.pop(number, None)
        return number, failed is None, time.monotonic() - job.begun


def _clear(block: _Block, error: Exception) -> None:
    """Removes what is not a whole block: half a store, or a file that was cut short."""
    short = isinstance(error, FileFailed) and error.errno == errno.ENODATA
    with contextlib.suppress(OSError):
        if block.temporary:
            os.unlink(block.temporary)
        elif short:
            os.unlink(block.path)


class GlakeTierManager(FileSystemTierManager):  # type: ignore[misc]
    """vLLM's tier of files over FileJobs.

    Args:
        given: as vLLM's factory gives them to its tier "fs", `root_dir` and others.
        depth: requests under way at once.

    Raises:
        InvalidArgument: n_read_threads or n_write_threads, which depth takes the place of.
    """

    _pool: Any

    def __init__(self, *, depth: int = 16, **given: Any) -> None:
        for name in ("n_read_threads", "n_write_threads"):
            if name in given:
                raise InvalidArgument(f'{name}: the tier "glake" has depth= for both, {depth} now')
        super().__init__(n_read_threads=1, n_write_threads=1, **given)
        self._pool.shutdown(wait=True)
        self._pool = FileJobs(depth)
        self._load_progress = self._pool.loaded

    def submit_store(self, job_metadata: Any) -> None:
        """Begins to write the job's blocks."""
        keys = list(job_metadata.keys)
        if self.events is not None:
            self._store_job_keys[job_metadata.job_id] = keys
        self._begin(self._pool.store, job_metadata, keys)

    def submit_load(self, job_metadata: Any) -> None:
        """Begins to read the job's blocks."""
        keys = list(job_metadata.keys)
        self._load_job_keys[job_metadata.job_id] = keys
        self._begin(self._pool.load, job_metadata, keys)

    def _begin(self, begin: Any, job: Any, keys: list[Any]) -> None:
        self._job_block_counts[job.job_id] = len(keys)
        whole, size = self._primary_kv_view.cast("B"), self._block_size
        begin(
            job.job_id,
            [self.file_mapper.get_file_name(key) for key in keys],
            [whole[int(at) * size : (int(at) + 1) * size] for at in job.chunk_ids],
        )
