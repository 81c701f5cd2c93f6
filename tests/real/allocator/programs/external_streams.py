"""Streams that PyTorch did not make are destroyed without a word, while their memory is live.

On a GPU a driver that is asked about such a stream crashes. The simulator notes the question.
"""

import ctypes

import torch

MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")


def u8(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def undefined():
    text = ctypes.create_string_buffer(1 << 14)
    driver.simcuda_violations(text, ctypes.c_size_t(len(text)), 1)
    return text.value.decode()


u8(1)
for turn in range(6):
    made = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
    stream = torch.cuda.ExternalStream(made.value)
    ours = u8(8 * MIB)
    host = torch.ones(4 * MIB, dtype=torch.uint8).pin_memory()
    with torch.cuda.stream(stream):
        kept = [u8(30 * MIB), u8(100)]
        kept[0][: 4 * MIB].copy_(host, non_blocking=True)
        freed = u8(20 * MIB)
        del freed
        if turn == 3:  # its last use is a capture
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                inside = kept[0] + 1
            graph.replay()
            del graph, inside
    ours.record_stream(stream)
    torch.cuda.synchronize()
    assert driver.cuStreamDestroy_v2(made) == 0
    del ours, kept, host, stream
    with torch.cuda.stream(torch.cuda.Stream()):
        other = [u8(size * MIB) for size in (25, 3, 40)]
        del other
    torch.cuda.empty_cache()
    torch.cuda.memory_stats()
    found = undefined()
    assert found == "[]", found
assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
assert torch.cuda.memory_reserved() <= 4 * MIB, torch.cuda.memory_reserved()
print("destroyed")
