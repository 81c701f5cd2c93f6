"""A program that has a GPU with another one, and needs its peak when the other does not.

Each line of its input is a turn. In a turn it makes tensors of random sizes, up to PEAK bytes, and
frees them. BASE bytes stay. Prints a line for each turn.
"""

import random
import sys

import torch

GIB = 1 << 30
BASE, PEAK = 1 * GIB, 6 * GIB


def turn(dice: random.Random) -> None:
    """Layers of activations, of which every other one is freed and replaced on the way back."""
    kept: list[torch.Tensor] = []
    left = PEAK
    while left > 0:
        size = min(left, dice.randrange(1 << 20, 192 << 20))
        kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        left -= size
    while kept:
        size = kept.pop().numel()
        if kept:
            size += kept.pop().numel()
        gradient = torch.empty(size * 3 // 4, dtype=torch.uint8, device="cuda")
        del gradient


def main() -> None:
    dice = random.Random(sys.argv[1])
    weights = torch.empty(BASE, dtype=torch.uint8, device="cuda")
    print("ready", flush=True)
    for _ in sys.stdin:
        turn(dice)
        print("done", flush=True)
    del weights


if __name__ == "__main__":
    main()
