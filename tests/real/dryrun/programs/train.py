"""A small training job that knows nothing of glake: train.py STEPS [LAST_BATCH]."""

import sys

import torch

steps = int(sys.argv[1])
last = int(sys.argv[2]) if len(sys.argv) > 2 else 256


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2048, 2048) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(steps):
    batch = last if step == steps - 1 else 256
    loss = net(torch.randn(batch, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "loss", loss.item())
torch.cuda.reset_peak_memory_stats()  # the dry run keeps the peak all the same
