"""torch.AcceleratorError: captur

It allocates from the driver, not from the graph's pool. CUDA Runtime API,
cudaThreadExchangeStreamCaptureMode: in a capture that is not relaxed, "this thread is prohibited
from potentially unsafe API calls"; cudaMalloc is one (CUDA C++ Programming Guide, "Prohibited and
Unhandled Operations").
"""

import torch

weight = torch.ones(100, device="cuda")
torch.cuda.caching_allocator_enable(False)
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    weight.add_(torch.empty(100, device="cuda"))
