import ctypes
import os

import pynvml

pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() > 0
child = os.fork()
if child == 0:
    count = ctypes.c_int()
    runtime = ctypes.CDLL("libcudart.so.13")
    os._exit(runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(4096)))
assert os.waitpid(child, 0)[1] == 0, "CUDA did not start in the child"
