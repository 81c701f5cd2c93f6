"""Prints the devices that CUDA_VISIBLE_DEVICES leaves, by the machine's numbers, as JSON.

visible.py [INDEX]: with an index, also allocates there, and prints NVML's use of each GPU.
"""

import ctypes
import json
import sys

import pynvml

driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
init, count = driver.cuInit(0), ctypes.c_int(-1)
status = runtime.cudaGetDeviceCount(ctypes.byref(count))
pynvml.nvmlInit()
total = pynvml.nvmlDeviceGetCount()
uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(total)]
found, peers = [], []
for device in range(count.value if status == 0 else 0):
    raw, bus, peer = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16), []
    assert driver.cuDeviceGetUuid_v2(raw, device) == 0
    assert driver.cuDeviceGetPCIBusId(bus, 16, device) == 0
    same = ctypes.c_int(-1)
    assert driver.cuDeviceGetByPCIBusId(ctypes.byref(same), bus) == 0 and same.value == device
    text = raw.raw.hex()
    (gpu,) = [i for i, uuid in enumerate(uuids) if uuid[4:].replace("-", "") == text]
    assert int(bus.value[5:7], 16) == gpu + 1
    found.append(gpu)
    for other in range(count.value):
        can = ctypes.c_int(-1)
        assert driver.cuDeviceCanAccessPeer(ctypes.byref(can), device, other) == 0
        peer.append(can.value)
    peers.append(peer)
used = []
if len(sys.argv) > 1:
    assert runtime.cudaSetDevice(int(sys.argv[1])) == 0
    assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64 << 20)) == 0
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(total)]
    used = [pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20 for handle in handles]
print(json.dumps([init, status, found, total, used, peers]))
