"""KV blocks moved by glake's worker, checked by a plain account of what should lie where."""

import random
import sys
from types import SimpleNamespace as Facts
from typing import Any

import numpy as np
import torch

import glake
from glake import errors, integrations, transfer

glake.enable()
import vllm.device_allocator  # noqa: E402 hooked as it is imported
from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: E402

from glake.integrations import vllm as hook  # noqa: E402
from glake.integrations.vllm_offload import EngineWorker  # noqa: E402

draw = random.Random(int(sys.argv[1]))
hook.register()
hook.register()
assert OffloadingSpecFactory._registry == {
    name: ("glake.integrations.vllm_offload", name)
    for name in ("GlakeOffloadingSpec", "GlakeTieringSpec")
}
assert isinstance(vllm.device_allocator.get_mem_allocator_instance(), hook.RegionAllocator)
integrations.uninstall("vllm")
assert vllm.device_allocator.get_mem_allocator_instance() == "vLLM's"


class Region:
    """Memory that two workers share by rows. The second row is this worker's."""

    def __init__(self, chunks: int, row: int) -> None:
        self.base_tensor = torch.frombuffer(bytearray(chunks * row), dtype=torch.int8)
        self.chunks, self.row, self.at, self.cleaned = chunks, row, row // 2, False

    def create_next_worker_view(self, size: int) -> Any:
        view = self.base_tensor.as_strided((self.chunks, size), (self.row, 1), self.at)
        self.at += size
        return view

    def cleanup(self) -> None:
        self.cleaned = True


def trial(shared: bool) -> None:
    per_chunk, blocks, chunks = draw.choice((1, 2, 3)), 40, 30
    pages = [draw.choice((64, 512, 4096)) for _ in range(draw.randint(1, 3))]
    tensors = [torch.randint(-128, 128, (blocks, page), dtype=torch.int8) for page in pages]
    layers = [
        [
            Facts(tensor_idx=at, page_size_bytes=pages[at] - draw.choice((0, 16)))
            for at in range(len(pages))
            if at == group or draw.random() < 0.7
        ]
        for group in range(draw.randint(1, len(pages)))
    ]
    caches = Facts(
        tensors=[
            Facts(tensor=each, page_size_bytes=page)
            for each, page in zip(tensors, pages, strict=True)
        ],
        group_data_refs=layers,
    )
    region = Region(chunks, 2 * per_chunk * sum(pages)) if shared else None
    worker = EngineWorker(caches, per_chunk, chunks, region)
    expected: dict[tuple[int, int, int], Any] = {}  # by tensor, chunk, place in the chunk
    job = 0
    for _ in range(6):
        sizes = [draw.choice((0, 1, 5, 7)) for _ in layers]
        firsts = [draw.randrange(50) for _ in layers]
        held = [
            -(-(first % per_chunk + size) // per_chunk) if size else 0
            for first, size in zip(firsts, sizes, strict=True)
        ]
        gpu_ids = draw.sample(range(blocks), sum(sizes))
        host_ids = draw.sample(range(chunks), sum(held))
        gpu = Facts(block_ids=np.array(gpu_ids, np.int32), group_sizes=sizes, block_indices=firsts)
        host = Facts(block_ids=np.array(host_ids, np.int32))
        job += 1
        assert worker.submit_store(job, gpu, host)
        pairs = []  # tensor, bytes, GPU block, chunk, place
        block = chunk = 0
        for group, size in enumerate(sizes):
            for number in range(size):
                place = firsts[group] % per_chunk + number
                for layer in layers[group]:
                    pairs.append(
                        (
                            layer.tensor_idx,
                            layer.page_size_bytes,
                            gpu_ids[block + number],
                            host_ids[chunk + place // per_chunk],
                            place % per_chunk,
                        )
                    )
            block, chunk = block + size, chunk + held[group]
        worker.wait({job})
        (result,) = worker.get_finished()
        assert (result.job_id, result.success) == (job, True)
        assert result.transfer_size == sum(pair[1] for pair in pairs)
        for at, size, block, chunk, place in pairs:
            expected[at, chunk, place] = (size, tensors[at][block, :size].clone())
        for (at, chunk, place), (size, bytes_) in expected.items():
            start = place * pages[at]
            assert torch.equal(worker._host[at][chunk, start : start + size], bytes_)
        before = [each.clone() for each in tensors]
        for each in tensors:
            each.zero_()
        job += 1
        assert worker.submit_load(job, host, gpu, expedited=True)
        worker.wait({job})
        assert [each.job_id for each in worker.get_finished()] == [job]
        wanted = [torch.zeros_like(each) for each in tensors]
        for at, size, block, _, _ in pairs:
            wanted[at][block, :size] = before[at][block, :size]
        assert all(map(torch.equal, tensors, wanted))
        for each, old in zip(tensors, before, strict=True):
            each.copy_(old)
    assert worker.get_finished() == []
    told = glake.stats()
    assert told["glake.integrations.vllm.stored_bytes"] > 0
    assert told["glake.transfer.failed"] == 0
    worker.shutdown()
    worker.shutdown()
    assert region is None or region.cleaned


for _ in range(6):
    trial(shared=False)
    trial(shared=True)

# Memory that is not there fails the job, and an array of the wrong form is refused.
page = torch.zeros(1 << 16, dtype=torch.int8)
caches = Facts(
    tensors=[Facts(tensor=page, page_size_bytes=1 << 12)],
    group_data_refs=[[Facts(tensor_idx=0, page_size_bytes=1 << 12)]],
)
worker = EngineWorker(caches, 1, 4)
gpu = Facts(block_ids=np.array([1 << 20], np.int32), group_sizes=[1], block_indices=[0])
assert not worker.submit_store(1, gpu, Facts(block_ids=np.array([0], np.int32)))
assert worker.get_finished() == []
worker.shutdown()
for wrong in ([], np.zeros((2, 2), np.uint64), np.zeros((2, 3), np.int64)):
    try:
        transfer.default_engine().copy_rows(wrong)
    except errors.InvalidArgument as told:
        assert "(n, 3) uint64" in str(told)
    else:
        raise AssertionError(wrong)
assert transfer.default_engine().copy_rows(np.zeros((5, 3), np.uint64)).wait().bytes == 0
print("moved")
