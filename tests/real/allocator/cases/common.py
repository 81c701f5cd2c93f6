"""Helpers of the cases. Kernels compute nothing here, so cases write and read memory by copies."""

import contextlib
import gc
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def u8(size: int) -> torch.Tensor:
    """`size` bytes on the current device, not initialised."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def marked(size: int, mark: int) -> torch.Tensor:
    """`size` bytes on the current device, each of which is `mark`."""
    return torch.full((size,), mark, dtype=torch.uint8).cuda()


def holds(tensor: torch.Tensor, mark: int) -> bool:
    return bool((tensor.cpu() == mark).all())


def stat(name: str) -> int:
    return torch.cuda.memory_stats()[name]


def refused(size: int) -> bool:
    """Whether a request of `size` bytes runs out of memory. If not, it is freed again."""
    try:
        u8(size)
    except torch.OutOfMemoryError:
        return True
    return False


def raises(kind: type[BaseException], phrase: str, call, *arguments, **named) -> str:
    """The text of the exception that `call` raises, of that class and with that phrase."""
    try:
        call(*arguments, **named)
    except kind as error:
        assert phrase in str(error), f"{phrase!r} is not in {str(error)!r}"
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def emptied() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limits memory to `size` bytes more than are reserved now."""
    before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((size + torch.cuda.memory_reserved()) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before)


@contextlib.contextmanager
def history(*arguments, **named) -> Iterator[None]:
    torch.cuda.memory._record_memory_history(*arguments, **named)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


def trace(device: int = 0) -> list[dict]:
    return torch.cuda.memory._snapshot()["device_traces"][device]


def segments_of(pool: tuple[int, int]) -> list[dict]:
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)]


def live_blocks(pool: tuple[int, int]) -> int:
    return sum(b["state"] == "active_allocated" for s in segments_of(pool) for b in s["blocks"])


def counting_library() -> str:
    """Compiles counting.cpp, and returns the library's path."""
    library = str(Path(tempfile.mkdtemp()) / "counting.so")
    source = Path(__file__).with_name("counting.cpp")
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
    return library
