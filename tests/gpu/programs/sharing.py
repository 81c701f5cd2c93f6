"""Tensors sent between processes (torch.multiprocessing, spawn)."""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from checks import DEVICE, MIB, main

SECONDS = 90


def serve(orders: Any, answers: Any) -> None:
    """Runs in the other process: does what each order says, until it is told to end."""
    kept: list[torch.Tensor] = []
    while True:
        what, tensor = orders.get()
        if what == "end":
            return
        if what == "add":
            tensor.add_(1)
            torch.cuda.synchronize()
            answers.put(("done", None))
        elif what == "keep":
            kept.append(tensor)
            answers.put(("done", None))
        elif what == "sum":
            answers.put(("sum", int(kept.pop().long().sum())))
        elif what == "make":
            kept.append(torch.full((3 * MIB,), 7, dtype=torch.uint8, device=DEVICE))
            torch.cuda.synchronize()
            answers.put(("tensor", kept[-1]))
        elif what == "drop":
            kept.clear()
            answers.put(("done", None))
        del tensor


class Other:
    """The other process. It starts at the first use, and ends with the program."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.orders, self.answers = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(self.orders, self.answers), daemon=True)
        self.process.start()

    def ask(self, what: str, tensor: torch.Tensor | None = None) -> Any:
        self.orders.put((what, tensor))
        return self.answers.get(timeout=SECONDS)[1]


_other: list[Other] = []


def other() -> Other:
    if not _other:
        _other.append(Other())
    return _other[0]


def check_the_other_process_writes_ours() -> None:
    for size in (3 * MIB, 40 * MIB):
        tensor = torch.full((size,), 1, dtype=torch.uint8, device=DEVICE)
        torch.cuda.synchronize()
        other().ask("add", tensor)
        assert bool((tensor == 2).all())


def check_small_tensors_of_one_granule() -> None:
    tensors = [torch.full((1000 + 8 * i,), i, dtype=torch.int64, device=DEVICE) for i in range(4)]
    torch.cuda.synchronize()
    other().ask("add", tensors[1])
    other().ask("add", tensors[3])
    assert [int(each[0]) for each in tensors] == [0, 2, 2, 4]
    assert [int(each[-1]) for each in tensors] == [0, 2, 2, 4]


def check_views() -> None:
    tensor = torch.zeros(1 << 20, dtype=torch.int64, device=DEVICE)
    torch.cuda.synchronize()
    other().ask("add", tensor[1000:2000])
    assert int(tensor.sum()) == 1000 and int(tensor[1000]) == 1 and int(tensor[2000]) == 0


def check_memory_outlives_the_sender() -> None:
    tensor = torch.full((5 * MIB,), 3, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    other().ask("keep", tensor)
    del tensor
    rubbish = [torch.full((5 * MIB,), 255, dtype=torch.uint8, device=DEVICE) for _ in range(8)]
    torch.cuda.synchronize()
    assert other().ask("sum") == 3 * 5 * MIB
    assert len(rubbish) == 8


def check_received_memory() -> None:
    tensor = other().ask("make")
    assert bool((tensor == 7).all()) and tensor.numel() == 3 * MIB
    tensor.add_(1)
    assert bool((tensor == 8).all())
    del tensor
    other().ask("drop")


if __name__ == "__main__":
    main(globals())
    if _other:
        _other[0].orders.put(("end", None))
        _other[0].process.join(20)
