"""Weights that two processes have in common (glake.deduplicate), with real kernels."""

from __future__ import annotations

import gc
import os
import tempfile
from functools import partial
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from checks import DEVICE, MIB, main, raises

import glake

SECONDS = 120
os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # a registry of its own


def loaded() -> torch.nn.Module:
    """Some 130 MiB of weights, the same in each process."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(2048, 2048) for _ in range(8)]
    return torch.nn.Sequential(*layers).requires_grad_(False).to(DEVICE)


def answered(model: torch.nn.Module) -> torch.Tensor:
    torch.manual_seed(4)
    return model(torch.randn(16, 2048).to(DEVICE)).cpu()


def serve(orders: Any, answers: Any) -> None:
    """Runs in the other process: does what each order says, until it is told to end."""
    model = loaded()
    before = answered(model)
    shared = glake.deduplicate(model, "32MiB")
    answers.put((shared.found_bytes, shared.given_back_bytes, shared.shared_bytes))
    for what in iter(orders.get, "end"):
        if what == "same":
            answers.put(bool(torch.equal(before, answered(model))))
        if what in ("kernel", "copy"):
            try:
                weight = model[0].weight
                weight.fill_(0) if what == "kernel" else weight.copy_(torch.zeros(2048, 2048))
                torch.cuda.synchronize()
                answers.put("written")
            except RuntimeError as error:
                answers.put(str(error))
            answers.close()
            answers.join_thread()
            os._exit(0)  # no call of the driver works any more


class Other:
    """The other process, which has shared its weights once this object is made."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.orders, self.answers = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(self.orders, self.answers), daemon=True)
        self.process.start()
        self.found, self.given_back, self.shared = self.answers.get(timeout=SECONDS)

    def ask(self, what: str) -> Any:
        self.orders.put(what)
        return self.answers.get(timeout=SECONDS)

    def end(self) -> None:
        self.orders.put("end")
        self.process.join(SECONDS)


def check_two_processes_have_one_copy() -> None:
    model = loaded()
    before = answered(model)
    shared = glake.deduplicate(model, "32MiB")
    assert shared.shared_bytes > 100 * MIB and shared.given_back_bytes == shared.shared_bytes
    assert torch.equal(before, answered(model))
    other = Other()
    try:
        assert other.found == other.given_back == other.shared == shared.shared_bytes
        assert other.ask("same")
        shared.close()
        assert torch.equal(before, answered(model))
        model[0].weight.fill_(0)  # private again
        torch.cuda.synchronize()
        assert other.ask("same")
    finally:
        other.end()


def refused_write(how: str) -> None:
    model = loaded()
    before = answered(model)
    shared = glake.deduplicate(model, "32MiB")
    other = Other()
    text = other.ask(how)
    other.process.join(SECONDS)
    assert "illegal memory access" in text, text
    assert torch.equal(before, answered(model))
    shared.close()


def check_a_copy_writes_no_other_process() -> None:
    refused_write("copy")


def check_a_kernel_writes_no_other_process() -> None:
    refused_write("kernel")


def check_two_models_of_one_process() -> None:
    model, second = loaded(), loaded()
    shared = glake.deduplicate({"a": model[0].weight, "b": second[0].weight})
    assert model[0].weight.data_ptr() == second[0].weight.data_ptr()
    assert shared.found_bytes * 2 == shared.shared_bytes
    weight, other = model[0].weight, torch.zeros(2048, 2048, device=DEVICE)
    text = str(raises(glake.InvalidPointer, partial(glake.transfer.copy, weight, other)))
    assert "may only be read" in text
    del model, second, weight, shared
    gc.collect()
    assert glake.stats()["glake.deduplication.shards"] == 0


if __name__ == "__main__":
    main(globals())
