"""torch.cuda.CUDAGraph over the stand-ins: replays copy, fill and call back each time.

Kernels compute nothing here, so the program sees what a replay does by copies and memsets.
"""

import sys

import torch

words = 1 << 16
source = torch.zeros(words, dtype=torch.int32).pin_memory()
there = torch.zeros(words, dtype=torch.int32, device="cuda")
second = torch.zeros_like(there)
back = torch.full((words,), -1, dtype=torch.int32).pin_memory()


def replay(graph: torch.cuda.CUDAGraph, value: int) -> torch.Tensor:
    source.fill_(value)
    graph.replay()
    torch.cuda.synchronize()
    return back


side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph(keep_graph=True)
with torch.cuda.graph(graph):
    there.copy_(source, non_blocking=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        second.copy_(there, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    back.copy_(second, non_blocking=True)
torch.cuda.synchronize()
assert int(back[0]) == -1, "the capture itself moved bytes"
graph.instantiate()
for value in (3, 8):
    assert bool((replay(graph, value) == value).all()), f"replay of {value}: {back[:4]}"

# A second graph in the first one's pool. Its memory is its own until both are gone.
again = torch.cuda.CUDAGraph()
with torch.cuda.graph(again, pool=graph.pool()):
    inner = there.clone()
    back.copy_(second, non_blocking=True)
again.replay()
torch.cuda.synchronize()
assert inner.is_cuda

# A wait inside a capture is PyTorch's error, and ends the capture.
broken = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(broken):
        torch.cuda.synchronize()
except RuntimeError as error:
    assert "captur" in str(error), error
else:
    raise AssertionError("a capturing thread waited")
assert int(replay(graph, 5)[0]) == 5, "the first graph was hurt"
sys.stdout.write("graphs replay\n")
