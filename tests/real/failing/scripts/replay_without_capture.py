r"""RuntimeError: capture_end\(\) must have been called

PyTorch, torch.cuda.CUDAGraph.replay: "Replay the CUDA work captured by this graph."
(https://docs.pytorch.org/docs/stable/generated/torch.cuda.CUDAGraph.html)
"""

import torch

graph, weight = torch.cuda.CUDAGraph(), torch.ones(100, device="cuda")
with torch.cuda.graph(graph):
    weight.add_(1)
graph.replay()
graph.reset()
graph.replay()
