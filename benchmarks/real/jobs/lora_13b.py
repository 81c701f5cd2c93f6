"""LoRA on 13B parameters: bf16, recomputed blocks, batches of every length, as chats have."""

import random

from gpt import Gpt, train

lengths = random.Random(7)
shapes = [(8, 64 * lengths.randint(4, 32)) for _ in range(12)]
train(Gpt(5120, 40, 40, 32000, rank=16), shapes)
