"""torch.cuda.CudaError: not correspond to a registered memory region

CUDA Runtime API, cudaErrorHostMemoryNotRegistered: "This error indicates that the pointer passed to
cudaHostUnregister() does not correspond to any currently registered memory region."
"""

import torch

data = torch.ones(1 << 16)
torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(data.data_ptr()))
