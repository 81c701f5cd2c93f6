"""DataLoader workers (argument: fork or spawn) read the parent's tensors. Forked ones overwrite.

Spawned workers get the tensors through shared memory, where torch itself lets writes be seen.
"""

import sys

import torch
from torch.utils.data import DataLoader, Dataset

ROWS, WIDTH = 240, 5000


class Stamped(Dataset):
    """Row i holds i. With `scribble` a worker overwrites each row that it has read."""

    def __init__(self, scribble: bool) -> None:
        self.scribble = scribble
        self.rows = torch.arange(ROWS).repeat_interleave(WIDTH).view(ROWS, WIDTH).contiguous()
        self.scratch = torch.zeros(1 << 20)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.rows[index].clone()
        if self.scribble:
            self.rows[index] = -1
            self.scratch += 1
        return row


def main(method: str) -> None:
    data = Stamped(scribble=method == "fork")
    stamp = torch.full((1 << 18,), 42)
    batches = mismatches = 0
    rounds = 2 if method == "fork" else 1  # a second round shows what the first has changed
    for _ in range(rounds):
        loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=method)
        for start, batch in zip(range(0, ROWS, 8), loader, strict=True):
            wanted = torch.arange(start, start + 8).repeat_interleave(WIDTH).view(8, WIDTH)
            filler = [torch.rand(50_000) for _ in range(4)]  # the parent keeps allocating
            mismatches += not torch.equal(batch, wanted)
            batches += 1
            del filler
    wanted = torch.arange(ROWS).repeat_interleave(WIDTH).view(ROWS, WIDTH)
    untouched = (
        torch.equal(data.rows, wanted)
        and bool((data.scratch == 0).all())
        and bool((stamp == 42).all())
    )
    print(f"{batches // rounds} batches a round, {mismatches} mismatches, parent", end=" ")
    print("untouched" if untouched else "changed")


if __name__ == "__main__":
    main(sys.argv[1])
