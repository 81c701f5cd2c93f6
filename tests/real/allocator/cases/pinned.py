"""Pinned host memory: its cache, its statistics, captures, and registered memory."""

import torch
from common import MIB, holds, raises


def stats():
    torch.cuda.init()
    return torch.cuda.host_memory_stats()


def case_sizes_and_requests_are_counted():
    first = torch.empty(40 << 10, dtype=torch.uint8, pin_memory=True)
    second = torch.empty(80 << 10, dtype=torch.uint8, pin_memory=True)
    seen = stats()
    assert seen["active_requests.current"] == seen["active_requests.peak"] == 2
    assert seen["num_host_alloc"] == seen["host_alloc_time.count"] == 2
    assert seen["active_bytes.current"] >= first.nbytes + second.nbytes
    del first
    assert stats()["active_requests.current"] == 1 and stats()["active_requests.peak"] == 2
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    assert stats()["active_requests.peak"] == 1 and stats()["num_host_alloc"] == 0
    del second


def case_bytes_of_whole_blocks_are_counted():
    def counted():
        seen = stats()
        return [seen[f"active_bytes.{key}"] for key in ("current", "peak", "allocated", "freed")]

    first = torch.empty(40 << 10, dtype=torch.uint8, pin_memory=True)
    assert counted() == [64 << 10, 64 << 10, 64 << 10, 0]
    second = torch.empty(80 << 10, dtype=torch.uint8, pin_memory=True)
    assert counted() == [192 << 10, 192 << 10, 192 << 10, 0]
    assert stats()["allocated_bytes.current"] == 192 << 10
    del first
    assert counted() == [128 << 10, 192 << 10, 192 << 10, 64 << 10]
    del second


def case_a_freed_block_is_used_again():
    block = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    place = block.data_ptr()
    del block
    again = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    assert again.data_ptr() == place and again.is_pinned()
    del again
    torch._C._host_emptyCache()
    assert stats()["num_host_free"] == 1


def case_a_block_in_a_copy_is_not_given_away():
    size, places = 8 * MIB, set()
    there = []
    for mark in range(8):
        block = torch.full((size,), mark, dtype=torch.uint8).pin_memory()
        places.add(block.data_ptr())
        there.append(block.to("cuda", non_blocking=True))
        del block
    torch.cuda.synchronize()
    assert all(holds(tensor, mark) for mark, tensor in enumerate(there))


def case_views_are_pinned_too():
    block = torch.arange(100, dtype=torch.int32).pin_memory()
    assert block[3:].is_pinned() and block.view(10, 10).is_pinned()
    assert bool((block[3:].cuda(non_blocking=True).cpu() == torch.arange(3, 100)).all())
    assert not torch.empty(4).is_pinned()
    assert block.clone().is_pinned() is False


def case_pinned_already_is_the_same():
    block = torch.ones(100).pin_memory()
    assert block.pin_memory().data_ptr() == block.data_ptr()


def case_registered_memory_is_pinned():
    data, runtime = torch.ones(1 << 16), torch.cuda.cudart()
    assert not data.is_pinned()
    assert runtime.cudaHostRegister(data.data_ptr(), data.nbytes, 0) == 0
    assert data.is_pinned()
    assert holds(data.to(torch.uint8).cuda(non_blocking=True), 1)
    assert runtime.cudaHostUnregister(data.data_ptr()) == 0
    assert not data.is_pinned()


def captured(work):
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        return work()


def case_unused_in_a_capture_it_is_given_again():
    def work():
        block = torch.empty(8).pin_memory()
        place = block.data_ptr()
        del block
        return place == torch.empty(8).pin_memory().data_ptr()

    assert captured(work)


def case_used_in_a_capture_it_is_kept():
    def work():
        there = torch.empty(8, device="cuda")
        block = torch.empty(8).pin_memory()
        there.copy_(block, non_blocking=True)
        place = block.data_ptr()
        del block
        return place == torch.empty(8).pin_memory().data_ptr()

    assert not captured(work)


def case_graphs_that_share_a_pool_share_pinned_memory():
    for use in (False, True):
        pool, graphs, places = torch.cuda.graph_pool_handle(), [], []
        for _ in range(2):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], pool=pool, capture_error_mode="thread_local"):
                block = torch.empty(8).pin_memory()
                if use:
                    torch.empty(8, device="cuda").copy_(block, non_blocking=True)
                places.append(block.data_ptr())
                del block
        assert (places[0] == places[1]) is not use


def case_device_memory_cannot_be_pinned():
    raises(RuntimeError, "only dense CPU tensors", torch.ones(1, device="cuda").pin_memory)


def case_loaders_pin():
    data = torch.utils.data.TensorDataset(torch.arange(32))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True):
        assert batch.is_pinned() and batch.cuda(non_blocking=True).cpu().equal(batch)
