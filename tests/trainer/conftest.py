"""One thread a process: these tensors are small, and tests of several ranks share the cores."""

import torch

torch.set_num_threads(1)
