"""Uses the GPU, prints its process's number, and sleeps."""

import os
import time

import torch

held = torch.ones(1, device="cuda")
print(os.getpid(), flush=True)
time.sleep(600)
