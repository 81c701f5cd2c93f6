"""glake.empty() beside torch: torch takes a Buffer through DLPack and the array interface."""

import gc

import torch

import glake

MIB = 1 << 20
ours = torch.zeros(MIB, dtype=torch.uint8, device="cuda")  # torch's own memory, of the same pool


def live():
    return glake.stats()["allocated_bytes.all.current"]


before = live()
buffer = glake.empty(8 * MIB)
place = buffer.ptr
shared = torch.from_dlpack(buffer)
assert shared.data_ptr() == place and shared.device == torch.device("cuda:0")
assert shared.dtype == torch.uint8 and shared.shape == (8 * MIB,)
shared.copy_(torch.full((8 * MIB,), 6, dtype=torch.uint8))
floats = shared.view(torch.float32)[: 1 << 20]
del buffer, shared
gc.collect()
assert live() == before + 8 * MIB and floats.data_ptr() == place
del floats
assert live() == before

side = torch.cuda.Stream()
with glake.empty(2 * MIB, stream=side) as buffer, torch.cuda.stream(side):
    taken = torch.as_tensor(buffer, device="cuda")  # __cuda_array_interface__
    assert taken.data_ptr() == buffer.ptr
    taken.fill_(0)
    del taken
    torch.from_dlpack(buffer)  # no wait on its own stream
    gc.collect()
other = torch.cuda.Stream()
buffer = glake.empty(2 * MIB, stream=side)
with torch.cuda.stream(other):
    crossed = torch.from_dlpack(buffer)  # this stream waits for side
    crossed.copy_(torch.zeros(2 * MIB, dtype=torch.uint8))
del buffer, crossed
torch.cuda.synchronize()
gc.collect()
assert live() == before, live() - before
print("buffers ok")
