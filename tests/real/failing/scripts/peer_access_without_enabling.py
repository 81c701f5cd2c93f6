"""torch.cuda.CudaError: peer access has not been enabled

CUDA Runtime API, cudaErrorPeerAccessNotEnabled: "This error indicates that
cudaDeviceDisablePeerAccess() is trying to disable peer addressing which has not been enabled yet
via cudaDeviceEnablePeerAccess()."
"""

import ctypes

import torch

torch.ones(1, device="cuda")
torch.cuda.check_error(ctypes.CDLL("libcudart.so.13").cudaDeviceDisablePeerAccess(1))
