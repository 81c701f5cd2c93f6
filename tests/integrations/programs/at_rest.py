"""What a hook costs a job that does not use what it hooks: at_rest.py STEPS NAME...

Training steps without the hook and with it, in one process. Prints one line of JSON: for each, the
driver calls of the simulator. CALLGRIND names a library of `begin` and `end(text)`, where each
stretch is to be counted by valgrind.
"""

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Callable

import torch

import glake
from glake import integrations, simcuda

glake.enable()
torch.set_num_threads(1)
library = os.environ.get("CALLGRIND")
callgrind = ctypes.CDLL(library) if library else None
draw = torch.Generator().manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.randn(16, 64, generator=draw)


def step() -> None:
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def counted(text: str, count: int) -> int:
    for _ in range(3):
        step()
    before = simcuda.calls()
    if callgrind is not None:
        callgrind.begin()
    for _ in range(count):
        step()
    if callgrind is not None:
        callgrind.end(text.encode())
    return simcuda.calls() - before


def both(name: str, count: int) -> dict[str, int]:
    importlib.import_module(importlib.import_module(f"glake.integrations.{name}").PACKAGE)
    integrations.uninstall(name)  # it was hooked as it was imported
    off = counted(f"{name} off", count)
    integrations.install(name)
    on = counted(f"{name} on", count)
    integrations.uninstall(name)
    return {"off": off, "on": on}


def main(measure: Callable[[str, int], dict[str, int]] = both) -> None:
    count, names = int(sys.argv[1]), sys.argv[2:]
    print(json.dumps({name: measure(name, count) for name in names}), flush=True)


if __name__ == "__main__":
    main()
