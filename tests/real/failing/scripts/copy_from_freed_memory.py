"""torch.AcceleratorError

A copy that uses memory its owner gave back. CUDA Runtime API, cudaErrorInvalidValue ("one or more
of the parameters passed to the API call is not within an acceptable range of values") or
cudaErrorIllegalAddress: "The device encountered a load or store instruction on an invalid memory
address."
"""

import torch

block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
place = block.data_ptr()
del block
torch.cuda.synchronize()
torch.cuda.empty_cache()
storage = torch._C._construct_storage_from_data_pointer(place, torch.device("cuda:0"), 1 << 20)
stale = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage, 0, (1 << 20,), (1,))
print(stale.cpu().sum())
torch.cuda.synchronize()
