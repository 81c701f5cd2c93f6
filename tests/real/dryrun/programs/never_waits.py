"""Memory mode: launches that nobody waits for are queued, and the queue is bounded."""

import torch


def held_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


layers = [torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)) for _ in range(100)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(8, 32, device="cuda")


def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


steps(50)
before = held_mib()
steps(100)
assert held_mib() - before < 40, (before, held_mib())
print("bounded")
