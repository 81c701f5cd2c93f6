"""A copy from host to GPU and back over every useful path of a simulated DGX A100.

GLAKE_DRIVER=sim:dgx_a100 GLAKE_SIM_MEMORY=1GiB python examples/transfer_copy.py
"""

import numpy as np

import glake
import glake.transfer as t

SIZE = 64 << 20
source = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
back = np.zeros_like(source)

gpu = glake.empty(SIZE, "cuda:0")  # a CUDA tensor serves as well
with t.register_host(source), t.register_host(back):  # pins them in place
    there = t.copy(gpu, source)  # the destination comes first, as in memcpy
    there.wait()
    home = t.copy(back, gpu)
    home.wait()
print("paths to the GPU:")
for path in there.result().paths:
    print("  ", path)
assert np.array_equal(source, back)
gpu.free()
