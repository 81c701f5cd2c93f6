"""Each process has one thread, because tensors are small and tests of several ranks share cores."""

import torch

torch.set_num_threads(1)
