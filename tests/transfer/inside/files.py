"""Files to and from host and GPU memory."""

import contextlib
import errno
import gc
import os
import resource
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glake
from glake import _C, errors
from glake import transfer as t
from glake.transfer import files
from glake.transfer.files import engine as inside
from glake.transfer.files.pieces import cut

MIB = 1 << 20
KINDS = ("pinned", "pageable", "gpu")


def some(size: int) -> Any:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


def put(kind: str, data: Any) -> Any:
    """Puts the bytes into memory of a kind."""
    if kind == "gpu":
        block = glake.empty(max(data.size, 1), 0)
        memory = t.Raw(block.ptr, data.size, 0)
        if data.size:
            t.copy(memory, data).wait()
        KEPT.append(block)
        return memory
    memory = t.pinned(data.size) if kind == "pinned" else np.empty(data.size, np.uint8)
    memory[:] = data
    return memory


def get(memory: Any) -> Any:
    if not isinstance(memory, t.Raw):
        return np.array(memory)
    data = np.empty(memory.bytes, np.uint8)
    if data.size:
        t.copy(data, memory).wait()
    return data


KEPT: list[Any] = []  # GPU blocks of the test


@pytest.fixture(autouse=True)
def _freed() -> Iterator[None]:
    yield
    KEPT.clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [0, 77, 4096, 3 * MIB + 1])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_001, 5 * MIB, 9 * MIB + 13])
def test_what_is_written_is_read(tmp_path: Path, kind: str, offset: int, size: int) -> None:
    file, around = tmp_path / "file", some(offset + size + 5000)
    file.write_bytes(around.tobytes())
    data = some(size)[::-1].copy()
    with t.FileEngine("1MiB", 4) as engine:
        written = engine.write(file, put(kind, data), offset).wait()
        assert written.done() and written.progress() == (size, size)
        back = put(kind, np.zeros(size, np.uint8))
        engine.read(file, back, offset).wait()
        assert engine.stats() == engine.stats() | {"reads": 1, "writes": 1, "buffer_bytes": 0}
    assert (get(back) == data).all()
    around[offset : offset + size] = data
    assert file.read_bytes() == around.tobytes()  # the rest of the file is unchanged


def test_a_small_request_of_gpu_memory_pins_no_more_than_it_needs(tmp_path: Path) -> None:
    _C.host_empty_cache()
    before = _C.host_stats()
    block = put("gpu", some(100_000))
    with t.FileEngine("64MiB", 4) as engine:
        engine.write(tmp_path / "file", block).wait()
        held = _C.host_stats()["reserved_bytes.current"] - before["reserved_bytes.current"]
        assert 0 < held <= 2 * MIB
    assert _C.host_stats()["allocated_bytes.current"] == before["allocated_bytes.current"]
    assert glake.stats()["glake.files.writes"] == t.stats()["files"]["writes"] > 0


def test_pieces_cover_the_range_once_and_only_its_ends_are_not_whole_blocks() -> None:
    for offset in (0, 1, 4095, 4096, 4097, 12345):
        for size in (0, 1, 4096, 4097, 50_000, 65_536):
            pieces = list(cut(offset, size, 8192))
            at = offset
            for piece in pieces:
                assert (piece.offset, piece.start) == (at, at - offset)
                assert 0 < piece.bytes <= 8192
                at += piece.bytes
            assert at == offset + size
            assert all(piece.whole for piece in pieces[1:-1])


def test_whole_blocks_of_aligned_memory_go_past_the_page_cache(tmp_path: Path) -> None:
    with t.FileEngine("1MiB", 2) as engine, t.FileEngine(direct=False) as cached:
        data = put("pinned", some(4 * MIB + 1))
        engine.write(tmp_path / "file", data).wait()
        assert engine.stats() == engine.stats() | {"writes": 1, "written_bytes": 4 * MIB + 1}
        assert engine.stats()["direct_bytes"] in (4 * MIB, 0)  # 0: the file system cannot
        cached.read(tmp_path / "file", data).wait()
        assert cached.stats() == cached.stats() | {"read_bytes": 4 * MIB + 1, "direct_bytes": 0}
    before = files.stats()
    t.write_file(tmp_path / "other", data).wait()
    t.read_file(tmp_path / "other", data).wait()
    after = files.stats()
    assert after["read_bytes"] - before["read_bytes"] == 4 * MIB + 1
    assert after["writes"] - before["writes"] == 1
    assert t.stats()["files"] == files.stats()


def test_a_file_system_without_direct_io(tmp_path: Path, monkeypatch: Any) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(inside.os, "open", refusing)
    data = put("pinned", some(2 * MIB))
    with t.FileEngine() as engine:
        engine.write(tmp_path / "file", data).wait()
        engine.read(tmp_path / "file", data).wait()
        assert engine.stats()["direct_bytes"] == 0
    assert (data == some(2 * MIB)).all()


def test_descriptors_are_the_callers_to_close(tmp_path: Path) -> None:
    data = put("pinned", some(3 * MIB))
    with t.FileEngine("1MiB", 1) as engine:
        with open(tmp_path / "file", "w+b") as file:
            writing = engine.write(file.fileno(), data, 10)
        writing.wait()
        assert str(tmp_path / "file") in repr(writing)
        with open(tmp_path / "file", "rb") as file:
            reading = engine.read(file.fileno(), data[: 2 * MIB], 10)
        reading.wait()
    assert (tmp_path / "file").read_bytes()[10:] == some(3 * MIB).tobytes()
    before = len(os.listdir("/proc/self/fd"))
    with t.FileEngine() as engine, pytest.raises(errors.FileFailed):
        engine.read(tmp_path / "nothing", data)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_ends_too_early(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_bytes(bytes(3 * MIB + 7))
    with t.FileEngine("1MiB", 2) as engine:
        reading = engine.read(tmp_path / "file", put(kind, some(5 * MIB)))
        with pytest.raises(errors.FileFailed, match=f"it has {3 * MIB + 7}.*file'") as told:
            reading.wait()
        assert told.value.filename == str(tmp_path / "file") and reading.done()
        with pytest.raises(errors.FileFailed):
            reading.wait()  # raises again
        engine.read(tmp_path / "file", put(kind, some(3 * MIB))).wait()
        assert engine.stats()["failed"] == 1 and engine.stats()["reads"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk(tmp_path: Path, kind: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = put(kind, some(8 * MIB))
    with t.FileEngine("1MiB", 4) as engine:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB + 4096, hard))
        try:
            writing = engine.write(tmp_path / "file", data)
            with pytest.raises(errors.FileFailed, match="File too large") as told:
                writing.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert isinstance(told.value, OSError) and told.value.errno == 27
        engine.write(tmp_path / "file", data).wait()
        back = put(kind, np.zeros(8 * MIB, np.uint8))
        engine.read(tmp_path / "file", back).wait()
    assert (get(back) == some(8 * MIB)).all()


def test_wrong_use_is_refused_at_once(tmp_path: Path) -> None:
    data, file = some(8192), tmp_path / "file"
    for wrong in (0, 100, 4097, "4KB", -4096):
        with pytest.raises(errors.InvalidArgument, match=r"block|KB"):
            t.FileEngine(wrong)
    for wrong in (0, 257, 1.5, True):
        with pytest.raises(errors.InvalidArgument, match="depth"):
            t.FileEngine(depth=wrong)  # type: ignore[arg-type]
    engine = t.FileEngine()
    for offset in (-1, 1.5, "0"):
        with pytest.raises(errors.InvalidArgument, match="offset"):
            engine.write(file, data, offset)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="gaps"):
        engine.write(file, data[::2])
    with pytest.raises(errors.InvalidArgument, match="read-only|cannot be the destination"):
        engine.read(file, bytes(10))
    with pytest.raises(errors.InvalidArgument, match="path"):
        engine.read(None, data)  # type: ignore[arg-type]
    assert not file.exists()
    assert engine.stats()["failed"] == 0  # wrong arguments are no requests
    for missing in (tmp_path / "no" / "folder", tmp_path, "a\0b", 987_654):
        with pytest.raises(errors.FileFailed):
            engine.write(missing, data)
    assert engine.stats()["failed"] == 4 and engine.stats()["writes"] == 0
    os.mkfifo(tmp_path / "pipe")
    for call in (engine.read, engine.write):
        with pytest.raises(errors.FileFailed):
            call(tmp_path / "pipe", data)
    engine.close()
    engine.close()
    with pytest.raises(errors.TransferClosed):
        engine.write(file, data)
    assert len(data) == 8192


def test_figures_while_engines_come_and_go(tmp_path: Path) -> None:
    class Held:
        """An object in a cycle, so that the collector ends its engine in the middle of a call."""

    before = files.stats()["writes"]
    for _ in range(300):
        held: Any = Held()
        held.itself, held.engine = held, t.FileEngine()
        held.engine.write(tmp_path / "file", bytes(10)).wait()
        del held
        files.stats()
    gc.collect()
    assert files.stats()["writes"] - before == 300


def test_a_neighbours_memory_is_not_written(tmp_path: Path) -> None:
    first, second = glake.empty("4MiB", 0), glake.empty("4MiB", 0)
    (tmp_path / "file").write_bytes(b"x" * (8 * MIB))
    with t.FileEngine("1MiB", 4) as engine:
        with pytest.raises(errors.InvalidPointer, match="begins a block of 4194304"):
            engine.read(tmp_path / "file", t.Raw(first.ptr, 8 * MIB, 0))
        with pytest.raises(errors.InvalidArgument, match="at most"):
            engine.read(tmp_path / "file", t.Raw(second.ptr, 1 << 46, 0))
        with (
            open(tmp_path / "file", "rb") as file,
            pytest.raises(errors.FileFailed, match="not op"),
        ):
            engine.write(file.fileno(), b"y")
        with (
            open(tmp_path / "file", "ab") as file,
            pytest.raises(errors.FileFailed, match="not op"),
        ):
            engine.read(file.fileno(), bytearray(10))


def test_timeouts_and_close(tmp_path: Path, monkeypatch: Any) -> None:
    go, real = threading.Event(), inside._move

    def slow(*given: Any) -> bool:
        assert go.wait(30)
        return real(*given)

    monkeypatch.setattr(inside, "_move", slow)
    engine = t.FileEngine("4KiB", 2)
    writing = engine.write(tmp_path / "file", some(100_000))
    with pytest.raises(errors.BusyTimeout, match="100000 bytes of .*file"):
        writing.wait(0.01)
    assert not writing.done() and writing.progress() == (0, 100_000)
    threading.Timer(0.05, go.set).start()
    engine.close()  # waits for the write
    assert writing.done() and writing.wait(0).progress()[0] == 100_000


def test_many_threads_and_dropped_handles(tmp_path: Path) -> None:
    with t.FileEngine("64KiB", 8) as engine:

        def work(number: int) -> None:
            data = some(300_000 + number)
            engine.write(tmp_path / f"{number}", data).wait()
            for _ in range(10):
                engine.read(tmp_path / f"{number}", np.empty_like(data))  # its handle is dropped
                back = np.empty_like(data)
                engine.read(tmp_path / f"{number}", back).wait()
                assert (back == data).all()

        threads = [threading.Thread(target=work, args=(each,)) for each in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert engine.stats()["failed"] == 0 and engine.stats()["reads"] == 160


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    engine = t.FileEngine()
    data = some(5000)
    writing = engine.write(tmp_path / "file", data).wait()
    child = os.fork()
    if child == 0:
        told = 0
        engine.close()
        assert files.stats()["writes"] == 0
        for call in (writing.wait, engine.stats, lambda: engine.write(tmp_path / "file", data)):
            try:
                call()
            except errors.Forked:
                told += 1
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    engine.close()


def test_at_the_interpreters_end_it_is_closed(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "programs" / "late_write.py"
    command = [sys.executable, program, tmp_path / "file", tmp_path / "late"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the interpreter ends" in done.stdout


def test_an_interrupt_leaves_a_request_whole_or_none(tmp_path: Path, monkeypatch: Any) -> None:
    """The first calls of the caller's thread to the pool are interrupted, before or after they have
    had their effect. No file stays open, and the engine goes on."""
    data, here, real = some(1 << 20), threading.current_thread(), ThreadPoolExecutor.submit
    calls, case = 0, (0, False)

    def interrupted(*given: Any) -> Any:
        nonlocal calls
        if threading.current_thread() is not here:
            return real(*given)
        calls += 1
        which, late = case
        if late:
            real(*given)
        if calls == which:
            raise KeyboardInterrupt
        return None if late else real(*given)

    with t.FileEngine("4KiB", 2) as engine:
        engine.write(tmp_path / "file", data).wait()
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
        for wanted in ((1, False), (1, True), (3, False), (3, True)):
            case, calls, back = wanted, 0, np.zeros_like(data)
            for _ in range(4):
                with contextlib.suppress(KeyboardInterrupt):
                    engine.read(tmp_path / "file", back).wait()
            assert calls == 4, "one task for a request"
        monkeypatch.undo()
        engine.close()
        assert len(os.listdir("/proc/self/fd")) == before
    assert (back == data).all()


def test_an_error_keeps_nothing_of_those_who_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"short")
    with t.FileEngine() as engine:
        reading = engine.read(tmp_path / "file", bytearray(6))

        def fails() -> "weakref.ref[Any]":
            mine = some(10)
            with pytest.raises(errors.FileFailed, match="it has 5") as told:
                reading.wait()
            assert told.value.errno == 61 and told.value.filename == str(tmp_path / "file")
            return weakref.ref(mine)

        mine = fails()
        gc.collect()  # the error and its frames are a cycle
        assert mine() is None
        first, second = (pytest.raises(errors.FileFailed, reading.wait).value for _ in range(2))
        assert first is not second and str(first) == str(second)


def test_a_request_that_the_system_cuts_goes_on_past_the_page_cache(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Linux cuts a call after 2 GiB. Here it is after 64 KiB."""
    real, cached = inside._request, 0

    def cut_short(file: Any, descriptor: int, memory: memoryview, offset: int) -> int:
        nonlocal cached
        cached += descriptor == file.cached
        return real(file, descriptor, memory[: 1 << 16], offset)

    monkeypatch.setattr(inside, "_request", cut_short)
    data = put("pinned", some(MIB))
    with t.FileEngine("1MiB", 2) as engine:
        engine.write(tmp_path / "file", data).wait()
        back = put("pinned", np.zeros(MIB, np.uint8))
        engine.read(tmp_path / "file", back).wait()
        direct = engine.stats()["direct_bytes"]
    assert (get(back) == some(MIB)).all()
    assert (cached, direct) in ((0, 2 * MIB), (32, 0))  # the latter without direct I/O


def test_a_descriptor_that_is_not_open(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        closed = file.fileno()
    with t.FileEngine() as engine:
        for wrong in (closed, -1, 1 << 70):
            for call in (engine.read, engine.write):
                with pytest.raises(errors.FileFailed, match="not open") as told:
                    call(wrong, bytearray(1))
                assert told.value.errno == errno.EBADF
