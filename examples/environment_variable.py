"""PyTorch's memory in glake by one environment variable; the script itself knows nothing of it.

GLAKE_ALLOCATOR=1 GLAKE_DRIVER=sim python examples/environment_variable.py
"""

import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(512, 256, generator=torch.Generator().manual_seed(0))
target = data.sum(dim=1, keepdim=True)

losses = []
for _ in range(20):
    loss = torch.nn.functional.mse_loss(model(data), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.1f} -> {losses[-1]:.1f}")
assert losses[-1] < losses[0]
