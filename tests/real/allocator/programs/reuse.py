"""A block recorded on a side stream is used again once that stream's work is done.

It prints the bytes reserved after a hundred more rounds.
"""

import torch

MIB = 1 << 20


def u8(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


host = torch.ones(8 * MIB, dtype=torch.uint8).pin_memory()
side = torch.cuda.Stream()
block = u8(8 * MIB)
place = block.data_ptr()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    block.copy_(host, non_blocking=True)
block.record_stream(side)
del block
torch.cuda.synchronize()
block = u8(8 * MIB)
assert block.data_ptr() == place
assert torch.cuda.memory_reserved() <= 20 * MIB, torch.cuda.memory_reserved()
print("ok")
