"""torch.cuda.CudaError: invalid copy direction

CUDA Runtime API, cudaErrorInvalidMemcpyDirection: "This indicates that the direction of the memcpy
passed to the API call is not one of the types specified by cudaMemcpyKind."
"""

import ctypes

import torch

block = torch.ones(1000, device="cuda")
place, size = ctypes.c_void_p(block.data_ptr()), ctypes.c_size_t(block.nbytes)
torch.cuda.check_error(ctypes.CDLL("libcudart.so.13").cudaMemcpy(place, place, size, 9))
