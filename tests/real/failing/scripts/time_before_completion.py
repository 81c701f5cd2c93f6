"""RuntimeError: Both events must be completed before calculating elapsed time

CUDA Runtime API, cudaEventElapsedTime: "If cudaEventRecord() has been called on both events but one
or both of them has not yet been completed (that is, cudaEventQuery() would return cudaErrorNotReady
on at least one of the events), cudaErrorNotReady is returned."
"""

import torch

start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
source = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
start.record()
for _ in range(10):
    copy = source.to("cuda", non_blocking=True)
end.record()
print(start.elapsed_time(end))
