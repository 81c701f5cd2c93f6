"""torch.cuda.CudaError

CUDA Runtime API, cudaIpcOpenMemHandle: "Maps memory exported from another process with
cudaIpcGetMemHandle into the current device address space."
"""

import ctypes

import torch


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


torch.ones(1, device="cuda")
runtime, place, handle = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p(), Handle()
runtime.cudaIpcOpenMemHandle.argtypes = (ctypes.c_void_p, Handle, ctypes.c_uint)
torch.cuda.check_error(runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(1 << 20)))
torch.cuda.check_error(runtime.cudaIpcGetMemHandle(ctypes.byref(handle), place))
opened = ctypes.c_void_p()
torch.cuda.check_error(runtime.cudaIpcOpenMemHandle(ctypes.byref(opened), handle, 1))
