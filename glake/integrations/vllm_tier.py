"""vLLM's tier of files, `"type": "glake"`: blocks read and written by glake's file engine.

Names of files, look-ups and events are those of vLLM's own tier "fs", so that either tier reads
files of the other. vLLM imports this module, which imports vLLM.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from glake.errors import FileFailed, InvalidArgument
from glake.integrations import figures
from glake.transfer.files import FileEngine

log = logging.getLogger("glake.vllm")


@dataclass
class _Job:
    begun: float = field(default_factory=time.monotonic)
    blocks: list[Future[None]] = field(default_factory=list)


class FileJobs:
    """Jobs of many blocks. Each block is a file. This class replaces the thread pool of vLLM's own
    tier.

    A file is opened when its turn comes, because jobs have thousands of blocks, and a process may
    have only a thousand open files.

    Args:
        depth: the most blocks under way at once, in all jobs. Others wait.
    """

    def __init__(self, depth: int) -> None:
        self._engine = FileEngine(depth=depth)
        self._threads = ThreadPoolExecutor(depth, thread_name_prefix="glake-tier")
        self._jobs: dict[int, _Job] = {}
        self._numbers = itertools.count()
        # For each failed load: the number of blocks before the first failure.
        self.loaded: dict[int, int] = {}

    def store(self, number: int, paths: Sequence[str], parts: Sequence[memoryview]) -> None:
        """Begins to write the blocks that do not exist yet."""
        self._begin(number, self._write, paths, parts)

    def load(self, number: int, paths: Sequence[str], parts: Sequence[memoryview]) -> None:
        """Begins to read blocks."""
        self.loaded[number] = 0
        self._begin(number, self._read, paths, parts)

    def get_finished(self) -> list[tuple[int, bool, float]]:
        """(job, whether all of it succeeded, seconds) of the jobs that are over."""
        over = [number for number, job in self._jobs.items() if all(map(Future.done, job.blocks))]
        return [self._finished(number) for number in over]

    def wait_idle(self) -> None:
        """Waits until nothing is read or written any more. get_finished() gives the results."""
        wait([block for job in self._jobs.values() for block in job.blocks])

    def shutdown(self, wait: bool = True) -> None:
        """Waits for all jobs. Blocks that are whole keep their names."""
        self.wait_idle()
        self.get_finished()
        self._threads.shutdown()
        self._engine.close()

    def _begin(
        self,
        number: int,
        carry: Callable[[str, memoryview], None],
        paths: Sequence[str],
        parts: Sequence[memoryview],
    ) -> None:
        job = self._jobs[number] = _Job()
        for path, part in zip(paths, parts, strict=True):
            try:
                block = self._threads.submit(carry, path, part)
            except RuntimeError as error:  # after shutdown() or at exit: the job fails
                block = Future()
                block.set_exception(error)
            job.blocks.append(block)

    def _write(self, path: str, part: memoryview) -> None:
        if os.path.exists(path):
            return
        temporary = f"{path}.{os.getpid()}.{next(self._numbers)}.tmp"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._engine.write(temporary, part).wait()
            os.replace(temporary, path)  # a stored block gets its name once it is whole
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        figures.add("vllm", "tier_written_bytes", part.nbytes)

    def _read(self, path: str, part: memoryview) -> None:
        try:
            self._engine.read(path, part).wait()
        except FileFailed as error:
            # The file was cut short, so the block is not whole, and vLLM computes it again.
            if error.errno == errno.ENODATA:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise
        figures.add("vllm", "tier_read_bytes", part.nbytes)

    def _finished(self, number: int) -> tuple[int, bool, float]:
        job = self._jobs.pop(number)
        failed = [(at, e) for at, block in enumerate(job.blocks) if (e := block.exception())]
        loaded = self.loaded.pop(number, None)
        if failed:
            at, error = failed[0]
            log.warning("KV tier job %d has failed: %s", number, error)
            if loaded is not None:
                self.loaded[number] = at
        return number, not failed, time.monotonic() - job.begun


class GlakeTierManager(FileSystemTierManager):  # type: ignore[misc]
    """vLLM's tier of files over FileJobs.

    Args:
        given: the arguments that vLLM's factory gives its tier "fs": `root_dir` and others.
        depth: the most blocks under way at once.

    Raises:
        InvalidArgument: n_read_threads or n_write_threads is given; `depth` replaces both.
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
