"""With only the second GPU in use, nothing makes a context on the first."""

import ctypes

import torch

driver = ctypes.CDLL("libcuda.so.1")


def alive(device):
    flags, active = ctypes.c_uint(), ctypes.c_int(-1)
    status = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    assert status == 0, status
    return active.value


def check(what):
    assert (alive(0), alive(1)) == (0, 1), (what, alive(0), alive(1))


tensor = torch.zeros(4, device="cuda:1")
check("zeros")
tensor[0].item()
check("item()")
repr(tensor)
check("repr()")
pinned = torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
check("pin_memory()")
tensor.copy_(torch.zeros(4).pin_memory(), non_blocking=True)
del pinned
torch._C._host_emptyCache()
check("the pinned cache emptied")
torch.cuda.empty_cache()
torch.cuda.memory_stats(1)
torch.cuda.memory._snapshot()
check("statistics and snapshot")
torch.cuda.set_device(1)
torch.cuda.mem_get_info()
torch.cuda.set_per_process_memory_fraction(0.5)
check("the limit")
print("ok")
