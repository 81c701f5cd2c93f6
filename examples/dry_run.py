"""What an unmodified CUDA script needs, under PyTorch's allocators and glake, without a GPU.

It needs PyTorch's CUDA build (docs/dry-run.md): python examples/dry_run.py
"""

import tempfile
from pathlib import Path

import glake

SCRIPT = """
import torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(256, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

with tempfile.TemporaryDirectory() as folder:
    script = Path(folder, "train.py")
    script.write_text(SCRIPT)
    runs = glake.dry_run(script, gpus="A100", allocators=("native", "glake"))
for run in runs:
    held = run.peak_reserved_bytes >> 20
    print(f"{run.allocator:8} holds {held} MiB, {run.driver_calls} driver calls")
    assert run.fits and run.steps == 2
