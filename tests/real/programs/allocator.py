import sys

import torch

expandable = sys.argv[1] == "True"
blocks = [torch.empty(20 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
assert torch.cuda.memory_allocated() == 80 << 20
assert torch.cuda.memory_reserved() >= 80 << 20
segments = torch.cuda.memory_snapshot()
assert all(segment["is_expandable"] == expandable for segment in segments), segments
before = torch.cuda.mem_get_info()[0]
try:
    torch.empty(64 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "Tried to allocate 64.00 GiB" in str(error), error
    assert "GPU 0 has a total capacity of 1024.00 MiB" in str(error), error
else:
    raise AssertionError("64 GiB fit in 1 GiB")
del blocks
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0
assert torch.cuda.mem_get_info()[0] >= before + (80 << 20), "memory was not given back"
