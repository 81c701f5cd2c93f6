"""The adapter as enable() installs it, seen through torch.accelerator (argument: the stub).

It runs on a CPU build of torch. A stand-in for libc10_cuda runs over the simulated GPU.
"""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

# This comes before `import torch`, which asks once whether there are hooks for CUDA.
GLOBAL = os.RTLD_GLOBAL | os.RTLD_NOW
found = importlib.util.find_spec("torch")
ctypes.CDLL(str(Path(found.origin).parent / "lib/libtorch_cpu.so"), mode=GLOBAL)
stub = ctypes.CDLL(sys.argv[1], mode=GLOBAL)

import torch  # noqa: E402

from glake import config  # noqa: E402
from glake.allocator import adapter  # noqa: E402

MiB = 1 << 20
stub.stub_allocate.restype = ctypes.c_void_p
stub.stub_allocate.argtypes = [ctypes.c_size_t]
stub.stub_free.argtypes = [ctypes.c_void_p]

adapter.install(config.read())
stub.stub_initialise()
torch.cuda._lazy_init = lambda: None  # a CPU build's own one raises
adapter.install(config.read())  # a second call does nothing

assert torch.accelerator.current_accelerator().type == "cuda"
block = stub.stub_allocate(20 * MiB)
assert block % 512 == 0
assert torch.accelerator.memory_allocated() == 20 * MiB
stats = torch.accelerator.memory_stats()
assert stats["requested_bytes.all.current"] == 20 * MiB
assert stats["reserved_bytes.all.current"] >= 20 * MiB
assert stub.stub_allocate(2000 * MiB) is None
assert torch.accelerator.memory_stats()["num_ooms"] == 1
stub.stub_free(block)
assert torch.accelerator.memory_allocated() == 0
assert torch.accelerator.max_memory_allocated() == 20 * MiB
torch.accelerator.reset_peak_memory_stats()
assert torch.accelerator.max_memory_allocated() == 0
torch.accelerator.reset_accumulated_memory_stats()
assert torch.accelerator.memory_stats()["requested_bytes.all.allocated"] == 0
torch.accelerator.empty_cache()
assert torch.accelerator.memory_reserved() == 0
free, total = torch.accelerator.get_memory_info()
assert total == 1024 * MiB and 0 < free <= total
stub.stub_free(block)  # refused, and counted
assert adapter.refused_frees() == 1
print("adapter ok on", torch.__version__.split("+")[0])
