"""glake as a library: enabled in the script, with a limit; statistics; what a limit refuses.

GLAKE_SIM_MEMORY=1GiB python examples/library_import.py
"""

import torch

import glake

glake.enable(driver="sim", limit="90%")  # before the first tensor

tensors = [torch.ones(1 << 20) for _ in range(8)]
stats = glake.stats()
print(f"live: {stats['allocated_bytes.all.current'] >> 20} MiB")
print(f"held: {stats['reserved_bytes.all.current'] >> 20} MiB")
assert stats["allocated_bytes.all.current"] >= 8 * 4 << 20

try:
    torch.empty(2 << 30, dtype=torch.uint8)
except RuntimeError as error:  # on the CPU build; on CUDA it is torch.OutOfMemoryError
    print("refused:", str(error).splitlines()[0])
else:
    raise SystemExit("2 GiB fitted, so the GPU has more than 1 GiB: " + __doc__.splitlines()[2])
