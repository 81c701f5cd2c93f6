"""torch.AcceleratorError

CUDA Runtime API, cudaErrorStreamCaptureImplicit: "The operation would have resulted in a disallowed
implicit dependency on a current capture sequence from cudaStreamLegacy."
"""

import ctypes

import torch

runtime = ctypes.CDLL("libcudart.so.13")
made = ctypes.c_void_p()
torch.ones(1, device="cuda")
assert runtime.cudaStreamCreate(ctypes.byref(made)) == 0  # one that waits for the legacy stream
blocking = torch.cuda.ExternalStream(made.value)
weight = torch.ones(100, device="cuda")
torch.cuda.synchronize()
with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=blocking):
    weight.add_(1)
    with torch.cuda.stream(torch.cuda.default_stream()):
        weight.add_(1)
