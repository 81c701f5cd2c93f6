"""RuntimeError: CUDA graphs must be captured on a non-default stream

CUDA Runtime API, cudaStreamBeginCapture: "Capture may not be initiated if stream is
cudaStreamLegacy."
"""

import torch

torch.ones(1, device="cuda")
torch.cuda.CUDAGraph().capture_begin()
