"""Sets PYTORCH_CUDA_ALLOC_CONF itself, as many scripts do: own_segments.py CONF."""

import os
import sys

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = sys.argv[1]

import torch  # noqa: E402 (it reads the variable)

held = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
found = torch.cuda.memory._snapshot()
grown = any(each["is_expandable"] for each in found["segments"])
print(f"expandable {grown}, split {found['allocator_settings']['max_split_size']}")
