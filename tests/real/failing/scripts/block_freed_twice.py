"""RuntimeError

PyTorch, torch.cuda.caching_allocator_delete: "Delete memory allocated using the CUDA memory
allocator." (https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.caching_allocator_delete.html)
A block that is freed already is an "invalid device pointer".
"""

import torch

place = torch.cuda.caching_allocator_alloc(3 << 20)
torch.cuda.caching_allocator_delete(place)
torch.cuda.caching_allocator_delete(place)
