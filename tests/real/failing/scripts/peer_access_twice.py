"""torch.cuda.CudaError: peer access is already enabled

CUDA Runtime API, cudaErrorPeerAccessAlreadyEnabled: "This error indicates that a call to
cudaDeviceEnablePeerAccess() is trying to re-enable peer addressing on from a context which has
already had peer addressing enabled."
"""

import ctypes

import torch

torch.ones(1, device="cuda")
runtime = ctypes.CDLL("libcudart.so.13")
torch.cuda.check_error(runtime.cudaDeviceEnablePeerAccess(1, 0))
torch.cuda.check_error(runtime.cudaDeviceEnablePeerAccess(1, 0))
