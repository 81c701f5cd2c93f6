"""Reinforcement learning: a policy of 2.1B parameters writes answers, then learns from them.

Generation keeps keys and values in a cache that grows by a token a step (torch.cat, as in
transformers' DynamicCache). Training compares with a frozen copy of the policy, in small batches.
"""

import copy
import random

import torch
from gpt import Gpt

SEQUENCES, MICRO, TURNS = 32, 4, 3


@torch.no_grad()
def write(policy: Gpt, prompt: int, answer: int) -> torch.Tensor:
    """Prompts of length `prompt`, followed by `answer` new tokens, chosen one by one."""
    tokens = torch.randint(32000, (SEQUENCES, prompt))
    caches = [None] * len(policy.blocks)
    x = tokens
    for _ in range(answer):
        hidden = policy.embedding(x)
        for index, block in enumerate(policy.blocks):
            hidden, caches[index] = block.extend(hidden, caches[index])
        logits = policy.head(hidden[:, -1]).float()
        x = torch.multinomial(logits.softmax(-1), 1)
        tokens = torch.cat([tokens, x], dim=1)
    return tokens


def log_probabilities(model: Gpt, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1]).float()
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def learn(policy: Gpt, frozen: Gpt, tokens: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        reference = torch.cat([log_probabilities(frozen, each) for each in tokens.split(MICRO)])
    rewards = torch.randn(SEQUENCES, 1)
    for batch, told, reward in zip(
        tokens.split(MICRO), reference.split(MICRO), rewards.split(MICRO), strict=True
    ):
        ratio = log_probabilities(policy, batch) - told
        loss = (ratio.square() - reward * ratio).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


policy = Gpt(2560, 32, 24, 32000)
frozen = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), fused=True)
lengths = random.Random(5)
for turn in range(TURNS):
    tokens = write(policy, 64 * lengths.randint(4, 16), 48 + 16 * lengths.randint(0, 3))
    learn(policy, frozen, tokens, optimizer)
    print(f"turn {turn} of {TURNS}: {tokens.shape[1]} tokens", flush=True)
