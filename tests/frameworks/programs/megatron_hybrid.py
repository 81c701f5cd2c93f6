"""Megatron-core's HybridDeviceOptimizer by PyTorch's CUDA build: megatron_hybrid.py PACKAGES.

Half of the parameters are optimized on the CPU, through pinned memory. PACKAGES is where
Megatron-core and NumPy are; torch is this Python's own. Prints what is pinned and allocated.
"""

import json
import os
import sys

import torch

sys.path.append(sys.argv[1])

from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer

WIDTH, LAYERS = 1024, 4


def main() -> None:
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = HybridDeviceOptimizer(
        model.parameters(),
        offload_fraction=0.5,
        cpu_optimizer_cls=torch.optim.AdamW,
        gpu_optimizer_cls=torch.optim.AdamW,
        lr=1e-3,
        pin_cpu_grads=True,
        pin_cpu_params=True,
        overlap_cpu_optimizer_d2h_h2d=True,
    )
    for _ in range(3):
        x = torch.randn(64, WIDTH).cuda()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    told = {"allocated": torch.cuda.memory_allocated(), "pinned": 0}
    if os.environ["GLAKE_ALLOCATOR"] == "1":
        from glake import _C, integrations

        told["pinned"] = _C.host_stats()["allocated_bytes.peak"]
        integrations.uninstall("megatron")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
