"""Copies by glake.transfer beside torch's `copy_()` of the same memory, on one GPU.

Rates are GB/s by wall clock, from the call until the bytes are there. Pageable memory is also
copied by torch's `.to()`, which takes new memory for each copy.

    benchmarks/gpu/transfers.py --driver cuda|sim [--most BYTES] [--rounds N]

Prints {"rows": [{call, case, bytes, times, unit, median, p10, p90, least}], "skipped"}. Rounds of
the cases alternate. "sim" only tries the script on the simulator, where rates mean nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

SIZES = (64 << 10, 256 << 10, 1 << 20, 16 << 20, 256 << 20)


class Device:
    """Bytes of glake's own GPU memory, as CuPy shows its arrays."""

    def __init__(self, size: int) -> None:
        from glake import _C

        self.size, self.address = size, _C.malloc(size, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }

    def free(self) -> None:
        """Gives the memory back."""
        from glake import _C

        _C.free(self.address)


def cases(size: int, device: Device, cuda: bool) -> dict[tuple[str, str], Callable[[], Any]]:
    """The timed functions by (call, case). Each returns when the bytes are there."""
    import glake.transfer as t

    raw = t.Raw(device.address, size, 0)
    pinned, pageable = t.pinned(size), _pageable(size)

    def glake(dst: Any, src: Any) -> Callable[[], Any]:
        return lambda: t.copy(dst, src, stream=t.UNORDERED).wait()

    found = {
        ("host to GPU, pinned", "glake"): glake(raw, pinned),
        ("GPU to host, pinned", "glake"): glake(pinned, raw),
        ("host to GPU, pageable", "glake"): glake(raw, pageable),
        ("GPU to host, pageable", "glake"): glake(pageable, raw),
    }
    if not cuda:
        for call, ends in (("host to GPU", (raw, pinned)), ("GPU to host", (pinned, raw))):
            found[f"{call}, pinned", "plain"] = _direct(*ends)
        return found
    import torch

    there = torch.as_tensor(device, device="cuda:0")
    fixed, loose = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.from_numpy(pageable)

    def plain(dst: Any, src: Any) -> Callable[[], Any]:
        def run() -> None:
            dst.copy_(src, non_blocking=True)
            torch.cuda.synchronize()

        return run

    found["host to GPU, pinned", "plain"] = plain(there, fixed)
    found["GPU to host, pinned", "plain"] = plain(fixed, there)
    found["host to GPU, pageable", "plain"] = plain(there, loose)
    found["GPU to host, pageable", "plain"] = plain(loose, there)
    found["host to GPU, pageable", ".to()"] = lambda: (loose.to("cuda:0"), torch.cuda.synchronize())
    found["GPU to host, pageable", ".to()"] = lambda: there.to("cpu")
    return found


def _pageable(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Written memory that begins at a page, so that no copy is faster by its alignment."""
    page = mmap.PAGESIZE
    memory = np.ones(size + page, np.uint8)
    first = -memory.ctypes.data % page
    return memory[first : first + size]


def _direct(dst: Any, src: Any) -> Callable[[], Any]:
    import glake.transfer as t

    return lambda: t.copy(dst, src, stream=t.UNORDERED, direct=True).wait()


def measure(size: int, rounds: int, cuda: bool) -> list[dict[str, Any]]:
    """The rows of one size."""
    device = Device(size)
    try:
        timed = cases(size, device, cuda)
        rates: dict[tuple[str, str], list[float]] = {key: [] for key in timed}
        for turn in range(rounds + 2):
            # Each round begins with another case, as what a case leaves behind may slow the next.
            first = turn % len(timed)
            for key, run in [*timed.items()][first:] + [*timed.items()][:first]:
                begin = time.perf_counter()
                run()
                seconds = time.perf_counter() - begin
                if turn >= 2:  # the first ones make contexts, buffers and pages
                    rates[key].append(size / seconds / 1e9)
    finally:
        device.free()
    return [
        {
            "call": call,
            "case": case,
            "bytes": size,
            "times": rounds,
            "unit": "GB/s",
            "median": float(np.median(found)),
            "p10": float(np.quantile(found, 0.1)),
            "p90": float(np.quantile(found, 0.9)),
            "least": min(found),
        }
        for (call, case), found in rates.items()
    ]


@click.command()
@click.option("--driver", type=click.Choice(["cuda", "sim"]), required=True)
@click.option("--most", type=int, default=SIZES[-1], show_default=True, help="Largest copy.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
def main(driver: str, most: int, rounds: int) -> None:
    """Copies by glake beside the driver's and torch's."""
    os.environ["GLAKE_DRIVER"] = driver
    rows = [
        row for size in SIZES if size <= most for row in measure(size, rounds, driver == "cuda")
    ]
    click.echo(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
