"""Under torch's CPU tensors, a second process of the same simulated machine opens a shared block,
although the host has less memory to spare by then."""

import subprocess
import sys

import torch

import glake

glake.enable(driver="sim")
tensor = torch.ones(1 << 20)
if len(sys.argv) > 1:
    address, size = glake.open_shared(sys.argv[1])
    print(size)
    glake.close_shared(address)
else:
    spared = b"x" * (200 << 20)
    subprocess.run([sys.executable, __file__, glake.share(tensor.data_ptr())], check=True)
