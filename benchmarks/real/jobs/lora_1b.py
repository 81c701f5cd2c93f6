"""LoRA on 1.3B parameters, batches of every length: small enough for `make demo`."""

import random

from gpt import Gpt, train

lengths = random.Random(7)
train(Gpt(2048, 32, 24, 32000, rank=16), [(8, 64 * lengths.randint(4, 32)) for _ in range(8)])
