"""Handles of copies, and how the engine begins and ends."""

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from driver import Stream, Stuck
from memory import MIB, Device, numbers

from glake import _C, errors, simcuda
from glake import transfer as t

LARGE = 32 * MIB


def test_await() -> None:
    data, block = numbers(LARGE), Device((LARGE,))

    async def both() -> tuple[t.Transfer, ...]:
        return await asyncio.gather(*(t.copy(block, data) for _ in range(1)), later())

    async def later() -> t.Transfer:
        return await t.copy(np.zeros(64, np.uint8), Device((64,)))

    done = asyncio.run(both())
    assert all(isinstance(one, t.Transfer) and one.done() for one in done)
    assert (block.get() == data).all()


def test_a_dropped_handle_keeps_its_memory_until_it_is_done() -> None:
    class Array(np.ndarray):
        """An array to which weak references can be made."""

    block = Device((LARGE,))
    data = numbers(LARGE).view(Array)
    expected = np.array(data)
    gone = weakref.ref(data)
    stream = Stuck(0)
    t.copy(block, data, stream=(0, stream.handle))
    del data
    gc.collect()
    assert gone() is not None
    stream.release()
    end = time.monotonic() + 20
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.01)
    gc.collect()
    assert gone() is None and (block.get() == expected).all()
    assert "glake-watcher" in [thread.name for thread in threading.enumerate()]


def test_memory_of_copies_given_up_is_kept_until_they_end() -> None:
    block = Device((LARGE,)).set(numbers(LARGE))
    data = t.pinned((LARGE,))
    gone = weakref.ref(data.base if data.base is not None else data)
    simcuda.set_link("u0", "s0", 0, simcuda.now_ns() + 100_000)
    handle = t.copy(data, block)
    with pytest.raises(errors.CopyFailed, match="may still write"):
        handle.wait()
    del handle, data
    gc.collect()
    time.sleep(0.2)
    gc.collect()
    assert gone() is not None
    simcuda.set_link("u0", "s0", 20)
    end = time.monotonic() + 20
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect()
    assert gone() is None


def test_cancel() -> None:
    data, block = numbers(2 * LARGE), Device((2 * LARGE,)).set(np.zeros(2 * LARGE, np.uint8))
    handle = t.copy(block, data)
    handle.cancel()
    try:
        handle.wait()
    except errors.CopyCancelled as error:
        assert "bytes of the destination are written" in str(error) or "as it was" in str(error)
        assert handle.progress()[0] < handle.bytes
        with pytest.raises(errors.CopyCancelled):
            handle.result()
    assert handle.done() and "done" in repr(handle) or "failed" in repr(handle)
    handle.cancel()


def test_timeouts() -> None:
    handle = t.copy(Device((LARGE,)), numbers(LARGE))
    for wrong in (-1, float("nan")):
        with pytest.raises(errors.InvalidArgument, match="seconds"):
            handle.wait(wrong)
    try:
        handle.wait(0)
    except TimeoutError as error:
        assert isinstance(error, errors.BusyTimeout)
    handle.wait(60)
    assert handle.wait(0) is handle


def test_a_copy_behind_a_stream_that_does_not_come() -> None:
    """The copy waits. Once it is cancelled, the stream goes on."""
    stream = Stuck(0)
    block, data = Device((LARGE,)), numbers(LARGE)
    handle = t.copy(block, data, stream=(0, stream.handle))
    assert not handle.done() and handle.progress() == (0, LARGE)
    with pytest.raises(errors.BusyTimeout):
        handle.wait(0.05)
    handle.cancel()
    with pytest.raises(errors.CopyCancelled, match="as it was"):
        handle.wait()
    stream.release()
    small = t.copy(Device((64,)), np.zeros(64, np.uint8), stream=(0, stream.handle))
    small.wait(60)


def test_an_engine_that_could_not_close_goes_on() -> None:
    """A plain copy behind a stream that does not come holds up the end of the engine. Others are
    waited for as before."""
    stream = Stuck(0)
    small = t.copy(Device((64,)), np.zeros(64, np.uint8), stream=(0, stream.handle))
    with pytest.raises(errors.BusyTimeout, match="close"):
        t.default_engine().close()
    assert t.default_engine().is_open
    block, data = Device((LARGE,), gpu=1), numbers(LARGE)
    other = Stream(1)
    t.copy(block, data, stream=(1, other.handle)).wait(60)
    assert (block.get() == data).all()
    stream.release()
    with pytest.raises(errors.TransferClosed, match="goes on in its stream"):
        small.wait(60)


def test_a_question_that_finds_no_memory_says_nothing_of_the_copy() -> None:
    stream, block, data = Stream(0), Device((48 * MIB,)), t.pinned(48 * MIB, np.uint8)
    data[:] = numbers(data.size)
    simcuda.fail("cuStreamQuery", 2, 1, 1000)
    try:
        t.copy(block, data, stream=(0, stream.handle)).wait(60)
    finally:
        simcuda.fail(None)
    assert (block.get() == data).all()


def test_threads() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            data, block = numbers(3 * MIB + seed, seed), Device((3 * MIB + seed,), gpu=seed % 4)
            back = np.zeros_like(data)
            for _ in range(3):
                t.copy(block, data).wait()
                t.copy(back, block).wait()
                assert (back == data).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_failed_copy_names_what_is_written() -> None:
    block, data = Device((LARGE,)), numbers(LARGE)
    simcuda.fail("cuMemcpyAsync", 1, 999, -1)
    simcuda.fail("cuMemcpyPeerAsync", 1, 999, -1)
    try:
        handle = t.copy(block, data)
        with pytest.raises(errors.CopyFailed, match="destination"):
            handle.wait(60)
        assert handle.done() and not handle.progress()[0]
    finally:
        simcuda.fail(None)


def test_engine_is_a_context_manager() -> None:
    default = t.default_engine()
    with pytest.raises(errors.InvalidArgument, match="is open"):
        t.Engine("dgx1v")
    default.close()
    default.close()
    with pytest.raises(errors.TransferClosed):
        default.copy(Device((64,)), np.zeros(64, np.uint8))
    data, block = numbers(LARGE), Device((LARGE,))
    with t.Engine("dgx_a100") as engine:
        assert engine.is_open and t.default_engine() is engine
        first = engine.copy(block, data).wait()
        second = engine.copy(block, data)
    assert not engine.is_open
    assert first.wait().done() and first.result().bytes == LARGE  # what the engine told is kept
    assert second.done()
    try:
        second.wait()
    except (errors.CopyCancelled, errors.TransferClosed) as error:
        assert str(error)
    assert t.copy(block, data).wait().done()
    with pytest.raises(errors.InvalidOption, match="no platform"):
        t.Engine("abacus")


def test_an_old_handle_leaves_the_next_engines_copies_alone() -> None:
    t.default_engine().close()
    block, data = Device((LARGE,)).set(np.zeros(LARGE, np.uint8)), numbers(LARGE)
    with t.Engine("dgx_a100") as engine:
        asked, dropped = engine.copy(block, data), engine.copy(block, data)
    with t.Engine("dgx_a100") as engine:
        new = [engine.copy(block, data), engine.copy(block, data)]
        del dropped
        asked.cancel()
        assert asked.done()
        del asked
        gc.collect()
        for copy in new:
            assert copy.wait(60).done() and copy.progress() == (LARGE, LARGE)
            assert copy.result().bytes == LARGE
        assert engine.stats()["failed"] == 0
    assert (block.get() == data).all()


def test_nothing_is_left() -> None:
    gc.collect()
    t.default_engine().close()
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert len(names) > 1 and not any(
        name.startswith(("glake-copy", "glake-pin")) for name in names
    )
    assert simcuda.violations() == []
    assert _C.stats(0)["requested_bytes.all.current"] == 0
