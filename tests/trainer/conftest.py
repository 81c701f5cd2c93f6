"""Each process has one thread: tensors are small here, and tests of several ranks share cores."""

import torch

torch.set_num_threads(1)
