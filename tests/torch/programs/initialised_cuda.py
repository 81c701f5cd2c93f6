"""glake.enable() after CUDA was initialised."""

import torch

import glake

torch.version.cuda = "13.0"
torch.cuda.is_initialized = lambda: True
try:
    glake.enable(driver="cuda")
except glake.GlakeError as error:
    print("CUDA is already initialised" in str(error))
