"""torch.AcceleratorError: captur

PyTorch, CUDA graphs: "Ops that synchronize the CPU with the GPU (e.g., .item() calls) are
prohibited." (https://docs.pytorch.org/docs/stable/notes/cuda.html). CUDA Runtime API,
cudaErrorStreamCaptureUnsupported: "The operation is not permitted when the stream is capturing."
"""

import torch

loss = torch.ones((), device="cuda")
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    print((loss * 2).item())
