"""Blocks that other streams use are never handed out too early, and are used again afterwards."""

import ctypes
import threading

import torch
from common import MIB, holds, marked, stat, u8


def sources(count, size):
    return [torch.full((size,), mark, dtype=torch.uint8).pin_memory() for mark in range(count)]


def case_a_recorded_block_waits_for_its_reader():
    size, side = 8 * MIB, torch.cuda.Stream()
    one, two = sources(2, size)
    for _ in range(20):
        block = u8(size)
        block.copy_(one, non_blocking=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy = torch.empty_like(block)
            copy.copy_(block, non_blocking=True)
        block.record_stream(side)
        del block
        taken = u8(size)
        taken.copy_(two, non_blocking=True)
        torch.cuda.synchronize()
        assert holds(copy, 0) and holds(taken, 1)


def waits_for(stream):
    """Whether memory of GPU 0 that the stream of GPU 1 uses is given out only after its work."""
    driver, go = ctypes.CDLL("libcuda.so.1"), torch.zeros(1, dtype=torch.int32).pin_memory()
    block = u8(600 * MIB)
    torch.cuda.synchronize()
    with torch.cuda.device(1):
        at, handle = ctypes.c_uint64(go.data_ptr()), ctypes.c_void_p(stream.cuda_stream)
        assert driver.cuStreamWaitValue32_v2(handle, at, 1, 0) == 0
    block.record_stream(stream)
    del block
    later = threading.Timer(0.3, go.fill_, [1])
    later.start()
    u8(600 * MIB)
    done = go.item() == 1
    later.join()
    torch.cuda.synchronize(1)
    return done


def case_another_gpus_stream_keeps_a_recorded_block():
    assert waits_for(torch.cuda.Stream(1))


def case_another_gpus_default_stream_keeps_a_recorded_block():
    assert waits_for(torch.cuda.default_stream(1))


def case_a_recorded_block_is_given_again_when_nothing_else_fits():
    size, side = 300 * MIB, torch.cuda.Stream()
    places = set()
    for _ in range(6):
        block = u8(size)
        places.add(block.data_ptr())
        block.record_stream(side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1000)
        del block
    assert torch.cuda.memory_reserved() <= 960 * MIB
    assert stat("num_ooms") == 0 and places


def case_a_recorded_block_is_given_again_once_the_work_is_done():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        block = u8(16)
    place = block.data_ptr()
    block.record_stream(torch.cuda.current_stream())
    torch.cuda._sleep(1000)
    del block
    with torch.cuda.stream(side):
        other = u8(16)
    torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(side):
        again = u8(16)
    assert again.data_ptr() == place and other.data_ptr() != place


def case_a_small_recorded_block_costs_nothing_for_ever():
    side = torch.cuda.Stream()
    for _ in range(5000):
        block = u8(512)
        block.record_stream(side)
        del block
    torch.cuda.synchronize()
    u8(512)
    assert torch.cuda.memory_reserved() <= 8 * MIB, torch.cuda.memory_reserved()
    assert torch.cuda.memory_allocated() == 0


def case_recording_its_own_stream_changes_nothing():
    block = u8(3 * MIB)
    place = block.data_ptr()
    block.record_stream(torch.cuda.current_stream())
    del block
    assert stat("active.all.current") == 0
    assert u8(3 * MIB).data_ptr() == place


def case_a_view_records_its_whole_block():
    side, stream = torch.cuda.Stream(), torch.cuda.Stream()
    one, two = sources(2, 3 * MIB)
    for _ in range(10):
        with torch.cuda.stream(stream):
            base = u8(3 * MIB)
            base.copy_(two, non_blocking=True)
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1 << 20)
            copy = torch.empty_like(base)
            copy.copy_(base, non_blocking=True)
        base[1000:].record_stream(side)
        del base
        with torch.cuda.stream(stream):
            other = u8(3 * MIB)
            other.copy_(one, non_blocking=True)
        torch.cuda.synchronize()
        assert holds(copy, 1) and holds(other, 0)


def case_memory_of_one_stream_is_used_on_its_own():
    """Bytes that were freed on a stream serve that stream at once."""
    for stream in [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(3)]:
        with torch.cuda.stream(stream):
            block = u8(5 * MIB)
            place = block.data_ptr()
            del block
            block = u8(5 * MIB)
            assert block.data_ptr() == place
            del block


def case_two_streams_never_share_bytes_at_once():
    streams = [torch.cuda.Stream() for _ in range(4)]
    given = [torch.full((2 * MIB,), k, dtype=torch.uint8).pin_memory() for k in range(4)]
    kept = []
    for step in range(30):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                block = u8(2 * MIB)
                block.copy_(given[k], non_blocking=True)
                copy = torch.empty_like(block)
                copy.copy_(block, non_blocking=True)
                if step % 7 == k:
                    kept.append((k, copy))
                del block, copy
    torch.cuda.synchronize()
    assert kept and all(holds(copy, k) for k, copy in kept)


def case_external_streams_are_streams():
    raw = torch.cuda.Stream()
    outside = torch.cuda.ExternalStream(raw.cuda_stream)
    with torch.cuda.stream(outside):
        block = marked(3 * MIB, 7)
        assert holds(block, 7)
    block.record_stream(outside)
    del block
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 0


def case_copies_between_devices_keep_contents():
    here = marked(5 * MIB, 9)
    there = here.to("cuda:1", non_blocking=True)
    del here
    filler = marked(5 * MIB, 1)
    assert there.get_device() == 1 and holds(there, 9) and holds(filler, 1)
    back = there.to("cuda:0")
    assert holds(back, 9)
    assert torch.cuda.can_device_access_peer(0, 1) in (True, False)


def case_saved_on_another_stream_in_backward():
    side = torch.cuda.Stream()
    weight = torch.ones(256, 256, device="cuda", requires_grad=True)
    for _ in range(3):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = (weight * 2).relu().sum()
        torch.cuda.current_stream().wait_stream(side)
        loss.backward()
        weight.grad = None
        del loss
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 256 * 256 * 4
