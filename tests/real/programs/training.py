"""Memory mode: kernels are launched but compute nothing, and all memory is taken and freed."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.attention(self.norm(x)).view(*x.shape[:2], 4, -1).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return x + self.mlp(x + mixed.transpose(1, 2).reshape(x.shape))


def train(model, batch):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    reserved = []
    for _ in range(4):
        output = model(batch)
        (output[0] if isinstance(output, tuple) else output).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        reserved.append(torch.cuda.memory_reserved())
    torch.cuda.synchronize()
    assert reserved[-1] == reserved[-2], f"memory grows from step to step: {reserved}"


for dtype in (torch.float32, torch.bfloat16):
    train(
        nn.Sequential(Block(128), Block(128)).to("cuda", dtype),
        torch.randn(2, 256, 128, device="cuda", dtype=dtype),
    )
train(
    nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)).cuda(),
    torch.randn(4, 3, 32, 32, device="cuda"),
)
train(
    nn.LSTM(32, 64, num_layers=2, bidirectional=True).cuda(), torch.randn(16, 4, 32, device="cuda")
)
train(nn.GRU(32, 64, bias=False).cuda(), torch.randn(16, 4, 32, device="cuda"))
assert torch.fft.rfft(torch.randn(8, 64, device="cuda")).shape == (8, 33)
