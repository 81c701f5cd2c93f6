"""A small GPT: its losses on a device and on the CPU are equal to the last bit."""

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.heads, self.dropout = heads, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def train(
    device: str, steps: int = 10, dropout: float = 0.0, autocast: bool = False
) -> list[float]:
    torch.manual_seed(0)
    width, words = 64, 100
    model = nn.Sequential(
        nn.Embedding(words, width),
        *[Block(width, 4, dropout) for _ in range(2)],
        nn.LayerNorm(width),
        nn.Linear(width, words),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        data = torch.randint(0, words, (4, 33))
        x, y = data[:, :-1].to(device), data[:, 1:].reshape(-1).to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            logits = model(x).view(-1, words)
        loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    on_gpu, on_cpu = train("cuda", **options), train("cpu", **options)
    apart = max(abs(a - b) for a, b in zip(on_gpu, on_cpu, strict=True))
    print("losses", on_gpu[0], on_gpu[-1], "difference", apart)
    assert on_gpu[0] > 4 and on_gpu[-1] > 0, on_gpu
    if options.get("autocast"):  # autocast has other lists of ops on the CPU
        assert apart < 0.02, (on_gpu, on_cpu)
    else:
        assert on_gpu == on_cpu, (on_gpu, on_cpu)
    print("equal")
