"""A full fine-tune of 6.7B parameters: bf16, AdamW, recomputed blocks, fixed shapes."""

from gpt import Gpt, train

train(Gpt(4096, 32, 32, 32000), [(1, 2048)] * 4)
