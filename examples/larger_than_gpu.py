"""A model larger than its GPU. Layers come one ahead of the work, and their memory is reused.

It needs PyTorch's CUDA build; with a GPU, GLAKE_ALLOCATOR=1 python examples/larger_than_gpu.py;
without one:
python -m glake dry-run --numbers --memory 1GiB --outside 0 --allocator glake \\
    examples/larger_than_gpu.py
"""

import torch

from glake import transfer

MIB = 1 << 20
layers = [torch.nn.Linear(4096, 4096, bias=False) for _ in range(24)]
model = torch.nn.Sequential(*layers)
size = sum(each.weight.nbytes for each in layers)
x = torch.randn(4, 4096)
with torch.no_grad():
    expected = model(x)
    offloader = transfer.Offloader("4GiB")  # of pinned host memory
    for layer in layers:
        offloader.offload(layer.cuda()).wait()
    with offloader.alternate(layers, frozen=True):
        result = model(x.cuda())
assert torch.allclose(result.cpu(), expected, rtol=1e-4, atol=1e-5)
print("a model of", size // MIB, "MiB; at most on the GPU:", end=" ")
print(torch.cuda.max_memory_allocated() // MIB, "MiB")
