"""vLLM's OffloadingConnector over glake's engine: KV blocks between GPU and host memory.

vLLM still does lookups, eviction and secondary tiers. Here are the specs that a job names, and the
worker that moves bytes. vLLM imports this module, which imports vLLM.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec, _all_workers_barrier
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from glake.errors import GlakeError, NotOffered
from glake.integrations import figures
from glake.transfer.engine import UNORDERED, default_engine
from glake.transfer.handle import Transfer
from glake.transfer.host import pinned, register_host

log = logging.getLogger("glake.vllm")


@dataclass
class _Job:
    """A job under way: its copy, and the time when it began, by time.monotonic()."""

    number: int
    transfer: Transfer
    begun: float


class _Direction:
    """Jobs of one direction, done in the order of their submission."""

    def __init__(self, to_host: bool) -> None:
        self.to_host = to_host
        self.jobs: deque[_Job] = deque()
        self._streams: dict[int, Any] = {}

    def start(self, number: int, rows: Any, gpu: Any) -> Transfer:
        """Copies rows of (GPU's address, host's address, bytes)."""
        if self.to_host:
            rows = rows[:, [1, 0, 2]]
        engine, begun = default_engine(), time.monotonic()
        if gpu.type == "cuda":
            # A copy must follow the model's work. Only after that work are the blocks to store
            # written, and the blocks to load into free. The model does not wait for the copy.
            stream = self._streams.setdefault(gpu.index, torch.cuda.Stream(gpu))
            stream.wait_stream(torch.cuda.current_stream(gpu))
            transfer = engine.copy_rows(rows, stream)
        else:  # in the emulation the model's work is done already
            if self.jobs:
                self.jobs[-1].transfer.wait()
            transfer = engine.copy_rows(rows, UNORDERED)
        figures.add("vllm", "stored_bytes" if self.to_host else "loaded_bytes", transfer.bytes)
        self.jobs.append(_Job(number, transfer, begun))
        return transfer

    def finished(self) -> list[TransferResult]:
        """The results of the jobs that are over, in order."""
        results = []
        while self.jobs and self.jobs[0].transfer.done():
            job = self.jobs.popleft()
            try:
                job.transfer.wait()
                done = True
            except GlakeError as error:  # vLLM then computes the blocks again
                log.warning("KV job %d has failed: %s", job.number, error)
                done = False
            results.append(
                TransferResult(job.number, done, job.transfer.bytes, time.monotonic() - job.begun)
            )
        return results

    def wait(self, numbers: set[int] | None) -> None:
        """Waits for these jobs, or for all. finished() gives their results."""
        for job in list(self.jobs):
            if numbers is None or job.number in numbers:
                try:
                    job.transfer.wait()
                except GlakeError:
                    continue


class EngineWorker(OffloadingWorker):  # type: ignore[misc]
    """Moves blocks between vLLM's KV tensors and host memory, over every path.

    Args:
        kv_caches: vLLM's KV tensors, and the layers of each group that each tensor has.
        blocks_per_chunk: GPU blocks of one chunk of host memory.
        chunks: how many chunks the host memory has.
        region: host memory that vLLM's processes share; None: memory of this process.
    """

    def __init__(
        self, kv_caches: Any, blocks_per_chunk: int, chunks: int, region: Any = None
    ) -> None:
        self._blocks_per_chunk, self._region, self._pins = blocks_per_chunk, region, None
        self._groups = kv_caches.group_data_refs
        self._pages = [each.page_size_bytes for each in kv_caches.tensors]
        self._gpu = [
            each.tensor.view(torch.int8).view(-1, page)
            for each, page in zip(kv_caches.tensors, self._pages, strict=True)
        ]
        sizes = [page * blocks_per_chunk for page in self._pages]
        if region is not None:
            self._host = [region.create_next_worker_view(size) for size in sizes]
            self._pins = register_host(region.base_tensor) if chunks else None
        else:
            self._host = [pinned((chunks, size), torch.int8).zero_() for size in sizes]
        self._store, self._load = _Direction(to_host=True), _Direction(to_host=False)

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Begins to copy blocks of the GPU to chunks of host memory. Returns whether it has
        begun."""
        return self._submit(self._store, job_id, src_spec, dst_spec)

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        """Begins to copy chunks of host memory to blocks of the GPU. Returns whether it has begun.

        vLLM 0.33 passes `expedited`. It changes nothing here, because loads have their own queue
        and never wait for stores.
        """
        return self._submit(self._load, job_id, dst_spec, src_spec)

    def get_finished(self) -> list[TransferResult]:
        """The results of the jobs that are over since the last call."""
        return self._store.finished() + self._load.finished()

    def wait(self, job_ids: set[int]) -> None:
        """Waits until these jobs are over."""
        self._store.wait(job_ids)
        self._load.wait(job_ids)

    def shutdown(self) -> None:
        """Waits for all jobs and gives the host memory back."""
        for direction in (self._store, self._load):
            direction.wait(None)
            direction.jobs.clear()
        if self._pins is not None:
            self._pins.unregister()
            self._pins = None
        self._host.clear()
        self._gpu.clear()
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _submit(self, direction: _Direction, job: int, gpu: Any, host: Any) -> bool:
        try:
            direction.start(job, self._rows(gpu, host), self._gpu[0].device)
        except GlakeError as error:
            log.warning("KV job %d was not begun: %s", job, error)
            return False
        return True

    def _rows(self, gpu: Any, host: Any) -> Any:
        """(GPU's address, host's address, bytes) of every layer's part of every block."""
        rows: list[Any] = []
        block = chunk = 0
        groups = zip(self._groups, gpu.group_sizes, gpu.block_indices, strict=True)
        for layers, count, first in groups:
            # The first block may lie behind the beginning of its chunk.
            places = first % self._blocks_per_chunk + np.arange(count)
            chunks = int(places[-1]) // self._blocks_per_chunk + 1 if count else 0
            blocks = gpu.block_ids[block : block + count].astype(np.uint64)
            held = host.block_ids[chunk : chunk + chunks].astype(np.uint64)
            block, chunk = block + count, chunk + chunks
            for layer in layers if count else ():
                rows.append(self._part(layer, blocks, held, places))
        return np.concatenate(rows) if rows else np.empty((0, 3), np.uint64)

    def _part(self, layer: Any, blocks: Any, chunks: Any, places: Any) -> Any:
        there, here = self._gpu[layer.tensor_idx], self._host[layer.tensor_idx]
        page = self._pages[layer.tensor_idx]
        within = (places % self._blocks_per_chunk * page).astype(np.uint64)
        rows = np.empty((len(blocks), 3), np.uint64)
        rows[:, 0] = there.data_ptr() + blocks * np.uint64(there.stride(0))
        rows[:, 1] = here.data_ptr() + within
        rows[:, 1] += chunks[places // self._blocks_per_chunk] * np.uint64(here.stride(0))
        rows[:, 2] = layer.page_size_bytes
        return rows


class _OverGlake:
    """The part of a vLLM spec that makes glake move its blocks."""

    config: Any
    num_chunks: int
    blocks_per_chunk: int
    replicated_layout: bool
    kv_bytes_per_chunk: int
    cpu_page_size_per_worker: int
    _worker: Any

    def get_worker(self, kv_caches: Any) -> EngineWorker:
        """The process's worker, which is made once."""
        if not self._worker:
            self._worker = self.create_worker(kv_caches)
        worker: EngineWorker = self._worker
        return worker

    def create_worker(self, kv_caches: Any) -> EngineWorker:
        """A worker over a region, if there is one."""
        if self.config.canonical_layout:
            raise NotOffered(
                "canonical_layout: glake's specs keep each worker's own layout; leave it out of "
                "kv_connector_extra_config, or use vLLM's TieringOffloadingSpec"
            )
        region = self._made_region()
        try:
            return EngineWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, region)
        except BaseException:
            if region is not None:
                region.cleanup()
            raise

    def _made_region(self) -> Any:
        return None

    def _region(self, **options: Any) -> Any:
        return SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
            **options,
        )


class GlakeOffloadingSpec(_OverGlake, CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPUOffloadingSpec with blocks that glake moves: `spec_name` of the connector."""

    def _made_region(self) -> Any:
        if not self._uses_shared_region() or not self.num_chunks:
            return None
        return self._region(barrier=_all_workers_barrier)


class GlakeTieringSpec(_OverGlake, TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's TieringOffloadingSpec. glake moves its blocks between GPU and host.

    Secondary tiers ("fs" and others) read and write the same host memory, as without glake.
    """

    def _made_region(self) -> Any:
        return self._region()  # the scheduler's process opens the region by its name
