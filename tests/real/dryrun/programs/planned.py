"""Small jobs that `glake plan` records and dry runs execute: planned.py KIND STEPS."""

import random
import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 8, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, recompute, width=512, layers=6, words=8192):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def perceptron(device):
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).to(device)
    return model, lambda i: model(torch.zeros(256, 2048, device=device)).square().mean()


def gpt(device, lengths, recompute):
    model = Gpt(recompute).to(device=device, dtype=torch.bfloat16)

    def loss(i):
        tokens = torch.zeros((8, lengths[i % len(lengths)]), dtype=torch.long, device=device)
        return functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    return model, loss


def make_step(job):
    kind, lengths = job.options["kind"], random.Random(3)
    if kind == "perceptron":
        model, loss = perceptron(job.device)
    elif kind == "fixed":
        model, loss = gpt(job.device, [1024], recompute=False)
    else:
        model, loss = gpt(job.device, [64 * lengths.randint(4, 24) for _ in range(16)], True)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(i):
        loss(i).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    step = make_step(SimpleNamespace(device="cuda", options={"kind": sys.argv[1]}))
    for i in range(int(sys.argv[2])):
        step(i)
