"""glake serves CuPy: here its pinned memory, as CuPy's runtime does not start without a GPU.

GLAKE_ALLOCATOR=1 GLAKE_DRIVER=sim python examples/hook_cupy.py
"""

import cupy
import numpy as np
import torch

import glake
from glake import integrations

assert torch.__version__  # glake is torch's allocator, so it can be CuPy's
integrations.install("cupy")  # no effect if the import of CuPy did it
pinned = cupy.cuda.alloc_pinned_memory(12 << 20)
array = np.frombuffer(pinned, np.float32, 3 << 20)
array[:] = 1
told = glake.stats()
print("asked for", told["glake.integrations.cupy.pinned_bytes"] >> 20, "MiB")
print("held", told["glake.host.reserved_bytes.current"] >> 20, "MiB")
