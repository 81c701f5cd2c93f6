"""PyTorch's backend:cudaMallocAsync over the stand-ins: bytes, streams, statistics, OOM."""

import torch

MiB = 1 << 20
assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
source = torch.arange(1 << 18, dtype=torch.int32).pin_memory()
there = source.to("cuda", non_blocking=True)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    second = torch.empty_like(there)
    second.copy_(there, non_blocking=True)
    there.record_stream(side)
del there
torch.cuda.current_stream().wait_stream(side)
assert torch.equal(second.cpu(), source)

for _ in range(3):
    blocks = [torch.empty(20 * MiB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    held = torch.cuda.memory_allocated()
    assert held >= 81 * MiB, held
    assert torch.cuda.memory_reserved() >= held
    del blocks
torch.cuda.synchronize()
assert torch.cuda.memory_allocated() == MiB, torch.cuda.memory_allocated()
reserved = torch.cuda.memory_reserved()
assert reserved >= 80 * MiB, "PyTorch's threshold keeps what is freed"
free = torch.cuda.mem_get_info()[0]
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < reserved
assert torch.cuda.mem_get_info()[0] > free
try:
    torch.empty(64 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "64.00 GiB" in str(error), error
else:
    raise AssertionError("64 GiB fit in 1 GiB")

layer = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(3):
    layer(torch.randn(32, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
