"""torch.AcceleratorError

A memset on a stream whose device is not the one it is issued for. CUDA C++ Programming Guide,
"Stream and Event Behavior" (https://docs.nvidia.com/cuda/cuda-c-programming-guide/): a launch to a
stream that is not associated to the current device fails. CUDA Runtime API,
cudaErrorInvalidResourceHandle: "This indicates that a resource handle passed to the API call was
not valid."
"""

import torch

torch.ones(1, device="cuda:1")
stream = torch.cuda.Stream(device="cuda:0")
disguised = torch.cuda.ExternalStream(stream.cuda_stream, device="cuda:1")
with torch.cuda.device(1), torch.cuda.stream(disguised):
    torch.ones(1000, device="cuda:1").add_(1)
    torch.cuda.current_stream().synchronize()
