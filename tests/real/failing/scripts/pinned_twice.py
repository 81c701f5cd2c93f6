"""torch.cuda.CudaError: already mapped|already registered

CUDA Runtime API, cudaErrorHostMemoryAlreadyRegistered: "This error indicates that the memory range
passed to cudaHostRegister() has already been registered."
"""

import torch

data = torch.ones(1 << 16)
runtime = torch.cuda.cudart()
torch.cuda.check_error(runtime.cudaHostRegister(data.data_ptr(), data.nbytes, 0))
assert data.is_pinned()
torch.cuda.check_error(runtime.cudaHostRegister(data.data_ptr(), data.nbytes, 0))
