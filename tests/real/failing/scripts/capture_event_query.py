"""torch.AcceleratorError: captur

CUDA Runtime API, cudaThreadExchangeStreamCaptureMode: "the thread is still prohibited from API
calls which necessarily conflict with stream capture, for example, attempting cudaEventQuery on an
event that was last recorded inside a capture sequence."
"""

import torch

event = torch.cuda.Event()
weight = torch.ones(100, device="cuda")
with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"):
    weight.add_(1)
    event.record()
    event.query()
