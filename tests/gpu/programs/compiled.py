"""torch.compile(mode="reduce-overhead") makes cudagraph trees, which restore states of pools."""

from __future__ import annotations

import torch
from checks import DEVICE, MIB, main, numbers
from torch import nn
from torch._dynamo.utils import counters


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)).to(DEVICE)


def check_forward() -> None:
    counters.clear()
    model = network()
    fast = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for seed in range(6):
            x = numbers(64 * 128, seed).view(64, 128)
            rubbish = torch.full((9 * MIB,), 255, dtype=torch.uint8, device=DEVICE)
            found = fast(x).clone()
            assert torch.allclose(found, model(x), atol=1e-3), f"run {seed}"
            del rubbish
    assert counters["inductor"]["cudagraph_skips"] == 0, dict(counters["inductor"])


def check_training() -> None:
    plain, copied = network(), network()
    fast = torch.compile(copied, mode="reduce-overhead")
    first = torch.optim.SGD(plain.parameters(), lr=0.1)
    second = torch.optim.SGD(copied.parameters(), lr=0.1)
    for seed in range(6):
        x = numbers(64 * 128, seed).view(64, 128)
        torch.compiler.cudagraph_mark_step_begin()
        losses = []
        for model, optimizer in ((plain, first), (fast, second)):
            optimizer.zero_grad()  # to None, because a compiled graph owns its gradients
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-3 * abs(losses[0]), losses


def check_branches_of_a_tree() -> None:
    """Two compiled functions are called in changing order, so states are saved and restored."""
    one = torch.compile(lambda x: (x * 2).relu() + 1, mode="reduce-overhead")
    two = torch.compile(lambda x: (x - 3).sigmoid() * x, mode="reduce-overhead")
    with torch.no_grad():
        for turn in range(8):
            x = numbers(1 << 16, turn)
            torch.compiler.cudagraph_mark_step_begin()
            y = one(x)
            z = (two(y) if turn % 3 else one(y)).clone()
            base = (x * 2).relu() + 1
            wanted = (base - 3).sigmoid() * base if turn % 3 else (base * 2).relu() + 1
            assert torch.allclose(z, wanted, atol=1e-4), f"turn {turn}"


if __name__ == "__main__":
    main(globals())
