"""GLAKE_DEBUG finds what a real kernel does to memory that is not its own."""

from __future__ import annotations

import ctypes

import torch
from checks import DEVICE, MIB, books, main
from kernels import call, stamp_bytes

ENVIRONMENT = {"GLAKE_DEBUG": "guard,poison,trace"}
CHECK_BOOKS = False  # each check reads them itself, and may leave another finding
CORRUPTED = 11


def found() -> str:
    """What glake_check() says is damaged. It must find something."""
    torch.cuda.synchronize()
    status, text = books()
    assert status == CORRUPTED, f"glake_check gave {status}: {text}"
    status, again = books()  # a finding is reported only once
    assert status == 0, again
    return text


def check_nothing_is_found_in_clean_work() -> None:
    for size in (100, 5000, 3 * MIB, 20 * MIB):
        tensor = torch.full((size,), 7, dtype=torch.uint8, device=DEVICE)
        stamp_bytes(tensor.data_ptr(), 0, 1, size, 9)
        assert bool((tensor == 9).all())
        del tensor
    torch.cuda.synchronize()
    status, text = books()
    assert status == 0, text


def check_an_overrun_is_named() -> None:
    for size in (1000, 3 * MIB + 100):
        tensor = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
        stamp_bytes(tensor.data_ptr(), size, 1, 8, 0xAB)
        text = found()
        assert str(size) in text, text
        del tensor


def check_an_underrun_is_named() -> None:
    tensor = torch.zeros(4096, dtype=torch.uint8, device=DEVICE)
    stamp_bytes(tensor.data_ptr() - 4, 0, 1, 4, 0xAB)
    assert "4096" in found()
    del tensor


def check_a_write_after_the_free_is_found() -> None:
    tensor = torch.zeros(5 * MIB, dtype=torch.uint8, device=DEVICE)
    address = tensor.data_ptr()
    del tensor
    torch.cuda.synchronize()
    stamp_bytes(address, 4096, 1, 16, 0xCD)
    assert str(5 * MIB) in found()


def check_freed_memory_is_filled() -> None:
    """A stale pointer no longer reads what was there."""
    tensor = torch.full((3 * MIB,), 7, dtype=torch.uint8, device=DEVICE)
    address = tensor.data_ptr()
    del tensor
    torch.cuda.synchronize()
    back = (ctypes.c_ubyte * 64)()
    call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(address + MIB), ctypes.c_size_t(64))
    assert bytes(back) != b"\x07" * 64


if __name__ == "__main__":
    main(globals())
