"""What a cache of keys and values holds, and what its driver calls take, under a serving load.

    python benchmarks/allocator/kv_cache.py [--requests N] [--json]

Requests of random prompts and answers come and go, 32 at a time, on the simulated GPU (phantom
memory: nothing is written). The shapes are those of Llama 3 8B in float16: 128 KiB a token. Beside
glake.KVCache in both of its layouts stand a block for each sequence that is as long as a sequence
may get, and a KVCache whose memory goes back to the driver whenever a sequence ends. Driver time is
that of two tables of prices, which no hardware has confirmed; it counts the calls that map, and
events. No figure is a time measured here, so two runs give the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click
import torch
from common import BenchmarkError
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import glake
from glake import _C, simcuda
from glake.trace.replay import COST_TABLES

LAYERS, HEADS, HEAD_DIM = 32, 8, 128
ROW = 2 * LAYERS * HEADS * HEAD_DIM * 2  # bytes of a token
MOST, AT_A_TIME = 8000, 32
GIB = 1 << 30
CALLS = (
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
)


@dataclass(frozen=True)
class Request:
    """The tokens of a prompt, and those of the whole text in the end."""

    prompt: int
    end: int


@dataclass(frozen=True)
class Figures:
    """What one way of holding the cache took.

    Attributes:
        tokens: bytes that the sequences' own tokens had, where that was most.
        held: bytes held from the driver, at most.
        calls: driver calls that map, per request.
        us: their time per request in microseconds, by table of prices.
    """

    name: str
    tokens: int
    held: int
    calls: float
    us: dict[str, float]


class Blocks:
    """A block for each sequence, as long as a sequence may get."""

    def __init__(self) -> None:
        self._blocks: dict[int, glake.Buffer] = {}
        self._next = 0

    def add(self, tokens: int) -> int:
        self._next += 1
        self._blocks[self._next] = glake.empty(MOST * ROW)
        return self._next

    def grow(self, sequence: int, tokens: int) -> None:
        pass

    def remove(self, sequence: int) -> None:
        self._blocks.pop(sequence).free()


class GivenBack(glake.KVCache):
    """A KVCache whose memory goes back to the driver when a sequence ends."""

    def remove(self, sequence: int) -> None:
        super().remove(sequence)
        _C.empty_cache(0)


def requests(count: int) -> list[Request]:
    """Long and short prompts, from 16 to 6,000 tokens, and answers of up to 2,000."""
    dice = random.Random(1)
    made = []
    for _ in range(count):
        prompt = int(16 * (6000 / 16) ** dice.random())
        made.append(Request(prompt, prompt + dice.randint(1, MOST - 6000)))
    return made


def measure(name: str, make: Callable[[], Any], load: list[Request], tick: Any) -> Figures:
    """Runs the load; a token of each sequence comes in each step."""
    _C.shutdown()
    simcuda.reset()
    for key, value in (("memory", "80GiB"), ("devices", "1"), ("phantom", "1")):
        simcuda.configure(key, value)
    _C.configure("driver", "sim")
    cache = make()
    waiting, running = list(reversed(load)), {}
    most = held = 0
    simcuda.reset_calls()
    while waiting or running:
        while waiting and len(running) < AT_A_TIME:
            request = waiting.pop()
            running[cache.add(request.prompt)] = (request, request.prompt)
        most = max(most, sum(length for _, length in running.values()))
        held = max(held, int(_C.stats()["glake.physical_bytes"]))
        for sequence, (request, length) in list(running.items()):
            if length == request.end:
                cache.remove(sequence)
                del running[sequence]
                tick()
            else:
                cache.grow(sequence, length + 1)
                running[sequence] = (request, length + 1)
    counted = sum(simcuda.calls(call) for call in CALLS)
    us = {
        table: sum(simcuda.cost_by_us(table, call) for call in CALLS) / len(load)
        for table in COST_TABLES
    }
    del cache
    return Figures(name, most * ROW, held, counted / len(load), us)


def kv_cache(kind: type[glake.KVCache], layout: str) -> Callable[[], glake.KVCache]:
    return lambda: kind(
        LAYERS,
        HEADS,
        HEAD_DIM,
        torch.float16,
        MOST,
        AT_A_TIME,
        layout=layout,  # type: ignore[arg-type]
    )


WAYS: dict[str, Callable[[], Any]] = {
    "a block of 8,000 tokens each": Blocks,
    "KVCache, given back at each end": kv_cache(GivenBack, "tokens"),
    'KVCache, layout="tokens"': kv_cache(glake.KVCache, "tokens"),
    'KVCache, layout="layers"': kv_cache(glake.KVCache, "layers"),
}


@click.command(help=__doc__)
@click.option("--requests", "count", default=300, type=click.IntRange(1), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(count: int, as_json: bool) -> None:
    load = requests(count)
    console = Console(stderr=as_json)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("requests", total=count * len(WAYS))
        found = [
            measure(name, make, load, lambda: progress.advance(task)) for name, make in WAYS.items()
        ]
    if len({each.tokens for each in found}) != 1:
        raise BenchmarkError("the ways did not run the same load")
    if as_json:
        print(json.dumps([replace(each).__dict__ for each in found], indent=1))
        return
    title = f"{count} requests, {AT_A_TIME} at a time; driver calls and time a request (simulated)"
    table = Table(title=title)
    for heading in ("way", "held, GiB", "x tokens", "calls", *COST_TABLES):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for each in found:
        table.add_row(
            each.name,
            f"{each.held / GIB:.2f}",
            f"{each.held / each.tokens:.2f}",
            f"{each.calls:.1f}",
            *(f"{each.us[costs] / 1e3:.2f} ms" for costs in COST_TABLES),
        )
    console.print(table)
    console.print(f"tokens of the sequences, at most: {found[0].tokens / GIB:.2f} GiB")


if __name__ == "__main__":
    main()
