"""torch.OutOfMemoryError: its text, its statistics, and the state after it; limits."""

import contextlib
import threading

import torch
from common import GIB, MIB, history, holds, marked, raises, refused, room_for, stat, trace, u8


def case_text_is_pytorchs():
    kept = u8(MIB)
    text = raises(torch.OutOfMemoryError, "CUDA out of memory. ", u8, 64 * GIB)
    for phrase in (
        "Tried to allocate 64.00 GiB", "GPU 0 has a total capacity of 1024.00 MiB of which",
        "is allocated by PyTorch", "is reserved by PyTorch but unallocated",
    ):  # fmt: skip
        assert phrase in text, (phrase, text)
    assert text.count("CUDA out of memory") == 1
    raises(torch.OutOfMemoryError, "Tried to allocate more than 1EB memory", u8, 1 << 60)
    assert holds(marked(100, 3), 3) and kept.is_cuda


def case_larger_than_the_device_is_refused():
    """Two streams were used, and a block is free where the arena would grow."""
    side, pools = torch.cuda.Stream(), [None, torch.cuda.MemPool()]
    for pool in pools:
        with contextlib.nullcontext() if pool is None else torch.cuda.use_mem_pool(pool):
            with torch.cuda.stream(side):
                kept = u8(1000)
            u8(30 * MIB)
            for size in (n << bit for bit in range(30, 60) for n in (2, 3)):
                assert refused(size), size
            assert u8(30 * MIB).is_cuda and kept.is_cuda


def case_class_is_pytorchs():
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    raises(RuntimeError, "out of memory", u8, 64 * GIB)


def case_half_can_be_had_again():
    size = torch.cuda.get_device_properties(0).total_memory * 6 // 10
    kept = u8(size)
    raises(torch.OutOfMemoryError, "Tried to allocate", u8, size)
    del kept
    kept = u8(size)
    assert kept.numel() == size


def case_observers_are_told():
    told, kept = [], u8(9 * MIB)
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: told.append(what))
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: told.append("second"))
    raises(torch.OutOfMemoryError, "", u8, 64 * GIB)
    (device, size, total, free), second = told
    assert (device, size, second) == (0, 64 * GIB, "second")
    assert 0 < free < total <= GIB and kept.is_cuda, (total, free)


def case_observers_may_take_a_snapshot():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda *_: seen.append(torch.cuda.memory._snapshot())
    )
    with history():
        kept = u8(9 * MIB)
        raises(torch.OutOfMemoryError, "", u8, 64 * GIB)
    (snapshot,) = seen
    assert any(s["allocated_size"] >= 9 * MIB for s in snapshot["segments"])
    events = [event["action"] for event in snapshot["device_traces"][0]]
    assert "oom" in events and kept.is_cuda, events


def case_history_has_it():
    with history():
        raises(torch.OutOfMemoryError, "", u8, 64 * GIB)
        (event,) = (event for event in trace() if event["action"] == "oom")
    assert event["size"] == 64 * GIB and event["device_free"] <= GIB
    assert any(frame["name"] == "u8" for frame in event["frames"])


def case_fraction_is_held():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    block = u8(int(total * 0.499))
    del block
    torch.cuda.empty_cache()
    text = raises(torch.OutOfMemoryError, "out of memory", u8, int(total * 0.52))
    assert "512.00 MiB allowed" in text, text
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert not refused(int(total * 0.6))
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    assert torch.cuda.get_per_process_memory_fraction(0) == 1.0
    assert torch.cuda.get_per_process_memory_fraction(1) == 0.5


def case_fraction_is_checked():
    raises(TypeError, "Invalid type", torch.cuda.set_per_process_memory_fraction, 1)
    for wrong in (-0.1, 2.0):
        raises(ValueError, "Invalid fraction", torch.cuda.set_per_process_memory_fraction, wrong)
    for value in (1.0, 0.0, 0.375):
        torch.cuda.set_per_process_memory_fraction(value)
        assert torch.cuda.get_per_process_memory_fraction() == value
        torch.cuda.empty_cache()
        assert refused(3 * MIB) == (value == 0.0)


def case_cached_memory_makes_room_under_a_limit():
    u8(1)
    with room_for(120 * MIB):
        three = [u8(40 * MIB) for _ in range(3)]
        assert refused(40 * MIB)
        del three
        whole = u8(110 * MIB)
        assert whole.numel() == 110 * MIB


def case_other_streams_blocks_are_had_before_it_is_refused():
    """Before it is refused, a request waits for a block that another stream still uses."""
    side, size = torch.cuda.Stream(), GIB // 2
    block = u8(size)
    block.record_stream(side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    del block
    assert u8(size + GIB // 4).numel() == size + GIB // 4


def case_a_thread_gets_its_own_error():
    failed = []

    def ask():
        failed.append(refused(64 * GIB))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [True] * 4 and stat("num_ooms") == 4
    assert not refused(GIB // 2)


def case_pinned_memory_out_of_memory_is_an_error():
    raises(RuntimeError, "", torch.empty, 1 << 50, dtype=torch.uint8, pin_memory=True)
    assert torch.empty(10, pin_memory=True).is_pinned()


def case_backward_out_of_memory_leaves_nothing():
    weight = torch.zeros(64 * MIB // 4, device="cuda", requires_grad=True)
    held = torch.cuda.memory_allocated()
    with room_for(150 * MIB):
        raises(torch.OutOfMemoryError, "", lambda: sum(weight * k for k in range(9)).sum())
    assert torch.cuda.memory_allocated() == held
    assert not refused(GIB // 2)
