"""Out of memory is torch's own error, and training goes on."""

import torch

import glake

kept = torch.full((1 << 20,), 7.0)
for size in (1 << 30, 1 << 50):
    try:
        torch.empty(size, dtype=torch.uint8)
    except torch.OutOfMemoryError as error:
        print(str(error).startswith("glake: "), glake.stats()["num_ooms"] > 0)
layer = torch.nn.Linear(2048, 2048)
optimizer = torch.optim.AdamW(layer.parameters())
failures = 0
for step in range(8):
    rows = 20000 if step % 2 else 64  # 20000 rows: 156 MiB each way
    try:
        layer(torch.ones(rows, 2048)).square().mean().backward()
        optimizer.step()
    except torch.OutOfMemoryError:
        failures += 1
    optimizer.zero_grad()
print(failures, bool((kept == 7).all()))
del kept, layer, optimizer
print(glake.stats()["requested_bytes.all.current"])
