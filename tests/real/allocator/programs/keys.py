"""Prints the keys of PYTORCH_CUDA_ALLOC_CONF that PyTorch's own headers name."""

import pathlib
import re

import torch

include = pathlib.Path(torch.__file__).parent / "include/c10"
text = (include / "cuda/CUDAAllocatorConfig.h").read_text()
keys = re.search(r"getKeys\(\) {(.*?)};", text, re.S).group(1)
joined = re.sub(r'"\s*"', "", re.sub(r"//.*", "", keys))
print(*re.findall(r'"(\w+)"', joined))
text = (include / "core/AllocatorConfig.h").read_text()
print(*re.findall(r"// Parse `(\w+)` from environment", text))
