"""Tensors of other processes, forks, exits; peers; memory with caching off."""

import contextlib
import ctypes
import os
import sys
import threading

import torch
import torch.multiprocessing
from common import MIB, holds, marked, raises, stat, u8


def read_and_write(tensors, answers):
    first, second = tensors.get()
    answers.put((holds(first, 4), holds(second, 5), first.untyped_storage().nbytes()))
    first.fill_(0)
    second.copy_(torch.full((1000,), 9, dtype=torch.uint8))
    torch.cuda.synchronize()
    del first, second
    answers.put("done")
    tensors.get()


def case_a_tensor_is_read_and_written_by_another_process():
    os.environ["GLAKE_SIM_MACHINE"] = f"cases-{os.getpid()}"  # one machine for both
    spawn = torch.multiprocessing.get_context("spawn")
    tensors, answers = spawn.SimpleQueue(), spawn.SimpleQueue()
    process = spawn.Process(target=read_and_write, args=(tensors, answers))
    process.start()
    first, second = marked(3 * MIB, 4), marked(1000, 5)
    torch.cuda.synchronize()
    tensors.put((first, second))
    assert answers.get()[:2] == (True, True)
    assert answers.get() == "done"
    assert holds(second, 9)
    tensors.put(None)
    process.join(60)
    assert process.exitcode == 0
    torch.cuda.ipc_collect()


def case_a_fork_cannot_use_cuda_and_harms_nothing():
    kept = marked(3 * MIB, 6)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = raises(RuntimeError, "forked", u8, 10)
        os.write(write, text[:20].encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 20).startswith(b"Cannot re-initialize")
    assert holds(kept, 6) and holds(marked(1000, 2), 2)


def with_live_tensors() -> None:
    _kept = torch.ones(100, device="cuda")


def by_sys_exit() -> None:
    _kept = torch.ones(100, device="cuda")
    sys.exit(0)


def in_a_thread() -> None:
    kept = []
    thread = threading.Thread(target=lambda: kept.append(torch.ones(100, device="cuda")))
    thread.start()
    thread.join()


def with_a_graph() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _kept = torch.empty(100, device="cuda")


def with_a_pool_and_pinned_memory() -> None:
    pool, pinned = torch.cuda.MemPool(), torch.ones(100).pin_memory()
    with torch.cuda.use_mem_pool(pool):
        _kept = pinned.to("cuda", non_blocking=True)


ENDS = (
    with_live_tensors,
    by_sys_exit,
    in_a_thread,
    with_a_graph,
    with_a_pool_and_pinned_memory,
)


def case_processes_end_in_peace():
    """They end as programs do: Python's exit handlers run, then static destructors."""
    for end in ENDS:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(SystemExit):
                end()
            ctypes.pythonapi.Py_Exit(0)
        assert os.waitpid(child, 0)[1] == 0, end.__name__


def case_peers_reach_each_others_memory():
    here, there = marked(3 * MIB, 3), torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")
    there.copy_(here)
    assert holds(there, 3)
    assert torch.cuda.can_device_access_peer(0, 1)
    there.copy_(marked(3 * MIB, 8), non_blocking=True)
    torch.cuda.synchronize(0)
    assert holds(there, 8)


def case_nothing_is_cached_with_caching_off():
    stream = torch.cuda.current_stream()
    torch.cuda.caching_allocator_enable(False)
    free = torch.cuda.mem_get_info()[0]
    block = u8(30 * MIB)
    ptr = torch.cuda.caching_allocator_alloc(5 * MIB, stream=stream)
    assert stat("requested_bytes.all.allocated") == torch.cuda.memory_reserved() == 0
    torch.cuda.caching_allocator_delete(ptr)
    del block
    assert torch.cuda.mem_get_info()[0] == free
    torch.cuda.caching_allocator_enable(True)
    assert u8(5 * MIB).is_cuda and torch.cuda.memory_reserved() >= 5 * MIB
