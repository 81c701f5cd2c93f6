"""Memory that others must see whole: contiguous kinds, the legacy IPC handle, pinned blocks."""

from __future__ import annotations

import ctypes

import torch
from checks import MIB, library, main
from kernels import call

VMM, LEGACY = 1, 2


def block(bytes: int, kind: int) -> int:
    glake = library()
    torch.cuda.synchronize()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    at = glake.glake_malloc_contiguous(ctypes.c_size_t(bytes), 0, stream, kind)
    assert at, "glake_malloc_contiguous gave nothing"
    return int(at)


def free(at: int) -> None:
    assert library().glake_free(ctypes.c_void_p(at)) == 0


def extent(at: int) -> tuple[int, int]:
    """(base, size) of the driver's allocation around the address."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(at))
    return base.value, size.value


def check_one_allocation_holds_the_block() -> None:
    for kind in (VMM, LEGACY):
        at = block(9 * MIB, kind)
        base, size = extent(at)
        assert base <= at and at + 9 * MIB <= base + size, (kind, hex(at), hex(base), size)
        free(at)


def check_legacy_handles() -> None:
    at = block(3 * MIB, LEGACY)
    handle = (ctypes.c_char * 64)()
    call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(at))
    assert any(handle.raw)
    free(at)


def check_contents() -> None:
    for kind in (VMM, LEGACY):
        at = block(2 * MIB + 512, kind)
        call("cuMemsetD8_v2", ctypes.c_uint64(at), ctypes.c_ubyte(5), ctypes.c_size_t(2 * MIB))
        back = (ctypes.c_ubyte * 16)()
        call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(at + 2 * MIB - 16), ctypes.c_size_t(16))
        assert bytes(back) == b"\x05" * 16
        free(at)


def check_pins_nest() -> None:
    tensor = torch.ones(4 * MIB, device="cuda")
    at, glake = ctypes.c_void_p(tensor.data_ptr()), library()
    assert glake.glake_pin(at) == 0 and glake.glake_pin(at) == 0
    del tensor
    torch.cuda.empty_cache()
    value = ctypes.c_float()
    call("cuMemcpyDtoH_v2", ctypes.byref(value), ctypes.c_uint64(at.value or 0), ctypes.c_size_t(4))
    assert value.value == 1.0  # its granules are still mapped
    assert glake.glake_unpin(at) == 0 and glake.glake_unpin(at) == 0


if __name__ == "__main__":
    main(globals())
