"""torch.AcceleratorError: captur

CUDA Runtime API, cudaErrorStreamCaptureUnsupported: "The operation is not permitted when the stream
is capturing."; PyTorch, CUDA graphs: "CPU-GPU synchronization" is prohibited in a capture
(https://docs.pytorch.org/docs/stable/notes/cuda.html).
"""

import torch

weight = torch.ones(100, device="cuda")
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    weight.add_(1)
    torch.cuda.synchronize()
