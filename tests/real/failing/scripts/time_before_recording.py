"""ValueError: Both events must be recorded before calculating elapsed time

CUDA Runtime API, cudaEventElapsedTime: "If cudaEventRecord() has not been called on either event,
then cudaErrorInvalidResourceHandle is returned."
"""

import torch

start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
torch.cuda.synchronize()
print(start.elapsed_time(end))
