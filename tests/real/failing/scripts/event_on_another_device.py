"""RuntimeError: Event device

CUDA Runtime API, cudaEventRecord: "Event and stream must be on the same CUDA context."
"""

import torch

event = torch.cuda.Event()
event.record(torch.cuda.current_stream(0))
event.record(torch.cuda.current_stream(1))
