"""torch.cuda.CudaError: invalid argument

CUDA Runtime API, cudaFree: "If cudaFree(devPtr) has already been called before, an error is
returned."
"""

import ctypes

import torch

torch.ones(1, device="cuda")
runtime, place = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
torch.cuda.check_error(runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(1 << 20)))
torch.cuda.check_error(runtime.cudaFree(place))
torch.cuda.check_error(runtime.cudaFree(place))
