"""RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture

PyTorch's own rule: the host memory of a captured copy is read at every replay. CUDA Runtime API,
cudaErrorStreamCaptureUnsupported: "The operation is not permitted when the stream is capturing."
"""

import torch

weight, data = torch.ones(100, device="cuda"), torch.ones(100)
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    weight.copy_(data, non_blocking=True)
