"""torch.AcceleratorError: captur

CUDA Runtime API, cudaErrorStreamCaptureUnsupported: "The operation is not permitted when the stream
is capturing."
"""

import torch

weight = torch.ones(100, device="cuda")
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    weight.add_(1)
    torch.cuda.current_stream().query()
