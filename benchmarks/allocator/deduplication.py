"""Physical memory of processes that have loaded the same weights, private and de-duplicated.

    python benchmarks/allocator/deduplication.py [--mib N] [--processes N]... [--json]

The weights are in glake.Buffers on one simulated GPU. The bytes are what the driver says is in use,
by all processes. A rate is the bytes of a process's weights by the host time that deduplicate()
took: the first process hashes them twice and copies them, the others hash them once.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

MIB = 1 << 20
LAYER = 12 * MIB + 512  # bytes of a weight: not whole granules


def used(drop: bool = True) -> int:
    """Bytes of the GPU that are in use by all processes."""
    from glake import _C

    if drop:
        _C.empty_cache(0)
    free, total, context = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
    driver = ctypes.CDLL(_C.driver_path())
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert driver.cuDevicePrimaryCtxRelease_v2(0) == 0
    return total.value - free.value


def worker(mib: int) -> None:
    """A process with weights. It does what each line of its input says."""
    import glake

    weights = {f"layer{i:03}": glake.empty(LAYER) for i in range(mib * MIB // LAYER)}
    pattern = bytes(i * 31 % 251 for i in range(4099))
    for index, buffer in enumerate(weights.values()):
        text = pattern * (LAYER // len(pattern))
        ctypes.memmove(buffer.ptr, text, len(text))  # simulated memory has host addresses
        ctypes.memset(buffer.ptr, index % 256, 8)
    loaded = sum(buffer.nbytes for buffer in weights.values())
    print(json.dumps(loaded), flush=True)
    kept = []
    for line in sys.stdin:
        start = time.perf_counter()
        if line.strip() == "share":
            kept.append(glake.deduplicate(weights))
        print(json.dumps([used(), time.perf_counter() - start]), flush=True)


class Process:
    """A worker process."""

    def __init__(self, mib: int, env: dict[str, str]) -> None:
        command = [sys.executable, __file__, "--worker", "--mib", str(mib)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)
        self.loaded = self.answer()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        self._process.communicate(timeout=60)


def measure(mib: int, count: int) -> dict[str, Any]:
    """The figures of `count` processes."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "GLAKE_DRIVER": "sim", "XDG_RUNTIME_DIR": folder}
        env |= {"GLAKE_SIM_MACHINE": f"bench-{os.getpid()}-{count}"}
        env |= {"GLAKE_SIM_MEMORY": f"{(count + 1) * (mib + 600)}MiB"}
        processes = [Process(mib, env) for _ in range(count)]
        try:
            private, _ = processes[-1].ask("look")
            steps = [process.ask("share") for process in processes]
            shared, _ = processes[-1].ask("look")
        finally:
            for process in processes:
                process.end()
    loaded = processes[0].loaded
    return {
        "processes": count,
        "weights_bytes": loaded,
        "private_bytes": private,
        "shared_bytes": shared,
        "after_each": [bytes_ for bytes_, _ in steps],
        "first_gb_s": loaded / steps[0][1] / 1e9,
        "later_gb_s": loaded / steps[-1][1] / 1e9 if count > 1 else None,
    }


@click.command(help=__doc__)
@click.option("--mib", default=240, help="MiB of weights of each process.")
@click.option("--processes", "counts", multiple=True, default=(1, 2, 4), help="how many.")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table.")
@click.option("--worker", "works", is_flag=True, hidden=True)
def main(mib: int, counts: tuple[int, ...], as_json: bool, works: bool) -> None:
    """Measures, or works."""
    if works:
        worker(mib)
        return
    rows = [measure(mib, count) for count in counts]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(title="Physical MiB of all processes on one GPU (simulated)")
    for head in ("processes", "weights of each", "private", "de-duplicated", "first GB/s",
                 "later GB/s"):  # fmt: skip
        table.add_column(head, justify="right")
    for row in rows:
        mibs = [row[name] / MIB for name in ("weights_bytes", "private_bytes", "shared_bytes")]
        later = "" if row["later_gb_s"] is None else f"{row['later_gb_s']:.2f}"
        rates = f"{row['first_gb_s']:.2f}", later
        table.add_row(str(row["processes"]), *(f"{each:.1f}" for each in mibs), *rates)
    Console().print(table)


if __name__ == "__main__":
    main()
