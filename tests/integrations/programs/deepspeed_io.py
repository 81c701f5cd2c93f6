"""Every call of DeepSpeed's extensions, as glake serves them: deepspeed_io.py FOLDER."""

import sys
from pathlib import Path

import pytest
import torch

import glake
from glake import errors
from glake.integrations import deepspeed_io
from glake.transfer import files

glake.enable()
FOLDER = Path(sys.argv[1])
aio = deepspeed_io.module("async_io")
pins = deepspeed_io.module("pin_memory").pin_handle()


def file(name: str) -> str:
    return str(FOLDER / name)


def pinning() -> None:
    example = torch.zeros(1, dtype=torch.float16)
    locked = pins.new_cpu_locked_tensor(1000, example)
    assert (locked.shape, locked.dtype) == ((1000,), torch.float16)
    assert pins.is_pinned(locked) and pins.is_pinned(locked[10:20])
    assert pins.free_cpu_locked_tensor(locked)
    assert pins.free_cpu_locked_tensor_by_ptr(locked.data_ptr())
    for other in (torch.zeros(1000), torch.zeros(0), torch.empty(4, device="meta")):
        assert not pins.is_pinned(other) and not pins.free_cpu_locked_tensor(other)
    assert not pins.free_cpu_locked_tensor_by_ptr(4096)


def settings() -> None:
    handle = aio.aio_handle(1 << 20, 8, True, True, 4)
    got = [getattr(handle, f"get_{name}")() for name in (
        "block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism",
        "alignment",
    )]  # fmt: skip
    assert got == [1 << 20, 8, True, True, 4, 4 * 4096]


def moving() -> None:
    handle = aio.aio_handle(block_size=100_000, queue_depth=4)
    pageable = torch.arange(300_000, dtype=torch.float32)  # in the emulated GPU's memory
    locked = handle.new_cpu_locked_tensor(300_000, pageable)
    locked.copy_(pageable)
    assert handle.wait() == 0
    for number, tensor in enumerate((pageable, locked, pageable.view(600, 500))):
        name = file(str(number))
        assert handle.async_pwrite(tensor, name) == 0
        assert handle.async_pwrite(tensor, name, 5_000_000) == 0
        assert handle.wait() == 2 and handle.wait() == 0
        for validate in (False, True):
            back = torch.zeros_like(tensor)
            assert handle.pread(back, name, validate, True) == 0
            assert handle.pwrite(tensor, file("copy"), validate, True, 0) == 0
            assert handle.wait() == 2 and torch.equal(back, tensor)
            back.zero_()
            assert handle.pread(back, name, validate, False, 5_000_000) == 1
            assert torch.equal(back, tensor)
            assert handle.pwrite(tensor, file("copy"), validate, **{"async": False}) == 1
            back.zero_()
            assert handle.read(back, file("copy"), validate) == 0 and torch.equal(back, tensor)
            assert handle.write(tensor, file("copy"), validate, file_offset=8192) == 0
        back.zero_()
        assert handle.sync_pread(back, file("copy"), 8192) == 1 and torch.equal(back, tensor)
        assert handle.sync_pwrite(tensor, file("copy"), 0) == 1
        back.zero_()
        assert aio.aio_read(back, file("copy"), 1 << 20, 4, False, False, True) == 0
        assert aio.aio_write(back, file("copy"), 1 << 20, 4, False, False, True) == 0
        with open(file("open"), "wb") as opened:
            assert handle.async_pwrite(tensor, opened.fileno(), 3) == 0
            assert handle.async_pwrite(tensor, fd=opened.fileno(), file_offset=2_000_000) == 0
        assert handle.wait() == 2
        back.zero_()
        assert handle.sync_pread(back, file("open"), 2_000_000) == 1 and torch.equal(back, tensor)
    assert aio.deepspeed_memcpy(locked, pageable + 1) == 0 and torch.equal(locked, pageable + 1)


def failing() -> None:
    handle = aio.aio_handle()
    tensor = handle.new_cpu_locked_tensor(1 << 20, torch.zeros(1)).zero_()
    with pytest.raises(errors.FileFailed, match="No such file"):
        handle.async_pread(tensor, file("nothing"))
    assert handle.wait() == 0
    Path(file("short")).write_bytes(bytes(1000))
    handle.async_pread(tensor, file("short"))
    handle.async_pwrite(tensor, file("good"))
    handle.async_pwrite(tensor, "/dev/full")
    with pytest.raises(errors.FileFailed, match="it has 1000"):
        handle.wait()
    assert handle.wait() == 0  # all have ended, and the handle still works
    assert Path(file("good")).read_bytes() == bytes(4 << 20)
    handle.async_pwrite(tensor, "/dev/full")
    with pytest.raises(errors.FileFailed, match="No space left"):
        handle.wait()
    with pytest.raises(errors.InvalidArgument, match="gaps"):
        handle.async_pwrite(tensor.view(1024, 1024).t(), file("good"))
    with pytest.raises(TypeError, match="async"):
        handle.pread(tensor, file("good"), False)
    handle.async_pwrite(tensor, file("good"))
    handle.pwrite(tensor, file("good"), True, True)
    real = files.FileTransfer.wait
    try:
        files.FileTransfer.wait = lambda self, *_: (  # type: ignore[method-assign,assignment]
            real(self),
            Path(self.path).write_bytes(b"x" * (4 << 20)),
        )
        with pytest.raises(errors.Corrupted, match="good differs"):
            handle.wait()
    finally:
        files.FileTransfer.wait = real  # type: ignore[method-assign]


pinning()
settings()
moving()
failing()
told = glake.stats()
assert told["glake.integrations.deepspeed.pinned_bytes"] >= 3 * 1_200_000
assert 0 < told["glake.files.written_bytes"] <= told["glake.integrations.deepspeed.written_bytes"]
assert told["glake.host.reserved_bytes.current"] > 0
print("moved")
