"""ValueError: Both events must be created with argument 'enable_timing=True'

CUDA Runtime API, cudaEventElapsedTime: "If either event was created with the
cudaEventDisableTiming flag, then this function will return cudaErrorInvalidResourceHandle." A
torch.cuda.Event has that flag unless enable_timing=True.
"""

import torch

start, end = torch.cuda.Event(), torch.cuda.Event()
start.record()
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end))
