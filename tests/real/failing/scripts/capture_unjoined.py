"""torch.AcceleratorError: unjoined

CUDA Runtime API, cudaErrorStreamCaptureUnjoined: "The capture sequence contains a fork that was not
joined to the primary stream."
"""

import torch

weight, side = torch.ones(100, device="cuda"), torch.cuda.Stream()
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        weight.add_(1)
