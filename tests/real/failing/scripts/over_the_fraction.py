"""torch.OutOfMemoryError: Tried to allocate

PyTorch, torch.cuda.set_per_process_memory_fraction: if more than the allowed value is asked for,
"will raise an out of memory error in allocator"
(https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.set_per_process_memory_fraction.html).
"""

import torch

torch.cuda.set_per_process_memory_fraction(0.25)
activations = torch.empty(400 << 20, dtype=torch.uint8, device="cuda")
