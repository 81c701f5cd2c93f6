"""What the driver says of glake's addresses, and what others may do with them (docs/interop.md)."""

from __future__ import annotations

import ctypes
import os

import torch
import torch.multiprocessing as multiprocessing
from checks import DEVICE, MIB, Skip, fragmented, main, raises, stat, stitch_of
from kernels import Refused, call

import glake

LEGACY_IPC_CAPABLE = 10  # CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
DMA_BUF = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
DMA_BUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
SIZE = 24 * MIB


class Block:
    """An address in the form in which others take arrays (`__cuda_array_interface__`)."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tensor_at(address: int, size: int) -> torch.Tensor:
    return torch.as_tensor(Block(address, size), device=DEVICE)


def range_of(address: int) -> tuple[int, int]:
    """(begin, size) of the driver's allocation around an address."""
    begin, size = ctypes.c_uint64(), ctypes.c_size_t()
    call("cuMemGetAddressRange_v2", ctypes.byref(begin), ctypes.byref(size),
         ctypes.c_uint64(address))  # fmt: skip
    return begin.value, size.value


def legacy_ipc(address: int) -> bytes:
    """The handle of cuIpcGetMemHandle. Refused if the driver has none."""
    handle = (ctypes.c_ubyte * 64)()
    call("cuIpcGetMemHandle", handle, ctypes.c_uint64(address))
    return bytes(handle)


def legacy_capable(address: int) -> bool:
    """Whether the driver says that it has a handle for the address."""
    said = ctypes.c_int(-1)
    call("cuPointerGetAttribute", ctypes.byref(said), LEGACY_IPC_CAPABLE, ctypes.c_uint64(address))
    return bool(said.value)


def check_ranges_of_default_memory_are_granules() -> None:
    tensor = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
    begin, size = range_of(tensor.data_ptr())
    assert begin <= tensor.data_ptr() < begin + size and size == 2 * MIB, (hex(begin), size)


def check_ranges_of_contiguous_memory_are_the_block() -> None:
    for kind in ("vmm", "legacy"):
        with glake.contiguous(kind):
            tensor = torch.empty(SIZE - 100, dtype=torch.uint8, device=DEVICE)
        assert range_of(tensor.data_ptr()) == (tensor.data_ptr(), SIZE), kind


def check_legacy_ipc_takes_legacy_memory_alone() -> None:
    for kind in ("stitched", "vmm"):
        with glake.contiguous(kind):
            tensor = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
        assert not legacy_capable(tensor.data_ptr()), kind
        raises(Refused, lambda tensor=tensor: legacy_ipc(tensor.data_ptr()))
    torch.cuda.synchronize()  # the refusal must leave no error
    with glake.contiguous("legacy"):
        tensor = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
    assert legacy_capable(tensor.data_ptr()) and any(legacy_ipc(tensor.data_ptr()))


def check_dma_buf_of_the_whole_extent() -> None:
    supported = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(supported), DMA_BUF_SUPPORTED, 0)
    if not supported.value:
        raise Skip("this device exports no dma-buf")
    tensors = {}
    for kind in ("vmm", "legacy", "stitched"):
        with glake.contiguous(kind):
            tensors[kind] = torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)
    refused = {}
    for kind, tensor in tensors.items():
        handle = ctypes.c_int(-1)
        try:
            with glake.pin(tensor.data_ptr()):
                call("cuMemGetHandleForAddressRange", ctypes.byref(handle),
                     ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(SIZE), DMA_BUF,
                     ctypes.c_uint64(0))  # fmt: skip
        except Refused as error:
            refused[kind] = str(error)
        else:
            os.close(handle.value)
    assert not refused, refused


def served(texts: list[str], answers: multiprocessing.Queue) -> None:
    """Runs in the other process: opens each text, adds one to its bytes, and closes it."""
    try:
        torch.zeros(1, device=DEVICE)
        for text in texts:
            address, size = glake.open_shared(text)
            tensor_at(address, size).add_(1)
            torch.cuda.synchronize()
            glake.close_shared(address)
        answers.put("done")
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")


def check_blocks_are_shared_by_a_text() -> None:
    tensors = {}
    for kind in ("stitched", "vmm", "legacy"):
        with glake.contiguous(kind):
            tensors[kind] = torch.full((SIZE,), 6, dtype=torch.uint8, device=DEVICE)
    kept = fragmented()
    before = stat("glake.stitches")
    tensors["of many places"] = torch.full((stitch_of(),), 6, dtype=torch.uint8, device=DEVICE)
    assert stat("glake.stitches") > before and kept
    torch.cuda.set_per_process_memory_fraction(1.0)  # comparing takes memory too
    torch.cuda.synchronize()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    texts = [glake.share(each.data_ptr()) for each in tensors.values()]
    child = context.Process(target=served, args=(texts, answers), daemon=True)
    child.start()
    said = answers.get(timeout=100)
    child.join(20)
    assert said == "done", said
    for kind, tensor in tensors.items():
        assert bool((tensor == 7).all()), kind


def check_a_pin_outlives_the_free() -> None:
    tensor = torch.full((SIZE,), 9, dtype=torch.uint8, device=DEVICE)
    address = tensor.data_ptr()
    glake.pin(address)
    del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert range_of(address)[1] == 2 * MIB  # still mapped
    again = tensor_at(address, SIZE)
    assert int(again[-1]) == 9
    del again
    glake.unpin(address)


if __name__ == "__main__":
    main(globals())
