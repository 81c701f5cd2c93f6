"""Many small blocks between GPU and host, by the engine and by the driver's own calls.

    python benchmarks/transfer/blocks.py [--platform NAME|FILE]... [--blocks N] [--size KIB]...
        [--json]

Each measurement is a process of its own on the simulated driver, in virtual time: a gather or a
scatter of N blocks in random order between GPU 0 and pinned memory of its socket. `single` makes
one cuMemcpyAsync for each block, and `batch` one cuMemcpyBatchAsync for a thousand blocks, on one
stream, as fast as the driver takes them. `engine` is glake.transfer, and `direct` is the engine on
this GPU alone. `bound` is the rate that all routes together allow. Rates are GB/s. The batch's
price is published for an H100, and the kernel's is assumed (simcuda/costs.json). The clock does not
count what calls cost the host; `submit` is the real time in which the engine takes the request, in
ms.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PLATFORMS = ("dgx_a100", "hgx_h100_h200", "gb200_tray", "a10_l40s_x8", "a40x8_bridged")
WAYS = ("gather h2d", "scatter h2d", "gather d2h", "scatter d2h")
SUBJECTS = ("single", "batch", "direct", "engine")
BATCH = 1000


def addresses(count: int, size: int, base: int, shuffled: bool) -> Any:
    """The address of each block, in the order of the copies."""
    import numpy as np

    order = np.random.default_rng(1).permutation(count) if shuffled else np.arange(count)
    return (base + order * size).astype(np.uint64)


def by_driver(dsts: Any, srcs: Any, size: int, batch: bool) -> float:
    """Nanoseconds of the driver's own copies, one for each block or in batches."""
    import ctypes

    import numpy as np

    from glake import _C

    library = ctypes.CDLL(str(Path(_C.__file__).parent / "lib" / "libsimcuda.so"))
    library.simcuda_now_ns.restype = ctypes.c_uint64
    stream = ctypes.c_void_p()

    def call(name: str, *arguments: Any) -> None:
        code = getattr(library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    start = library.simcuda_now_ns()
    if batch:
        sizes = np.full(BATCH, size, np.uint64)
        attributes, first, failed = (ctypes.c_int * 16)(1), ctypes.c_size_t(), ctypes.c_size_t()
        for at in range(0, len(dsts), BATCH):
            some = [np.ascontiguousarray(side[at : at + BATCH]) for side in (dsts, srcs)]
            pointers = [ctypes.c_void_p(side.ctypes.data) for side in (*some, sizes)]
            call("cuMemcpyBatchAsync", *pointers, ctypes.c_size_t(len(some[0])), attributes,
                 ctypes.byref(first), ctypes.c_size_t(1), ctypes.byref(failed), stream)  # fmt: skip
    else:
        for dst, src in zip(dsts.tolist(), srcs.tolist(), strict=True):
            call("cuMemcpyAsync", ctypes.c_uint64(dst), ctypes.c_uint64(src),
                 ctypes.c_size_t(size), stream)  # fmt: skip
    call("cuStreamSynchronize", stream)
    return float(library.simcuda_now_ns() - start)


def measure(subject: str, way: str, count: int, size: int) -> dict[str, float]:
    """Measures one figure in this process, whose driver is the simulator."""
    import numpy as np

    from glake import _C, simcuda, transfer

    what, direction = way.split()
    engine = transfer.default_engine()
    host = transfer.pinned((count * size,), np.uint8)
    gpu = _C.malloc(count * size, 0)
    places = {"h2d": (gpu, host.ctypes.data), "d2h": (host.ctypes.data, gpu)}[direction]
    devices = (0, -1) if direction == "h2d" else (-1, 0)
    dsts = addresses(count, size, places[0], what == "scatter")
    srcs = addresses(count, size, places[1], what == "gather")
    if subject in ("single", "batch"):
        ns = by_driver(dsts, srcs, size, subject == "batch")
        return {"rate": count * size / ns, "submit": 0.0}
    index = np.random.default_rng(1).permutation(count)
    flat = [transfer.Raw(at, count * size, on) for at, on in zip(places, devices, strict=True)]
    blocks = [transfer.Blocks(at, size, count, size) for at in places]
    begin, start = simcuda.now_ns(), time.thread_time()
    if what == "gather":
        handle = engine.gather(flat[0], blocks[1], index)
    else:
        handle = engine.scatter(blocks[0], flat[1], index)
    submit = time.thread_time() - start
    handle.wait()
    return {"rate": count * size / (simcuda.now_ns() - begin), "submit": 1e3 * submit}


def elsewhere(platform: str, subject: str, way: str, count: int, size: int) -> dict[str, float]:
    """Runs `measure` in a process of its own. `direct` sees a machine of one GPU."""
    memory = f"{max(1024, 2 * count * size >> 20)}MiB"
    more = {"GLAKE_DRIVER": f"sim:{platform}", "GLAKE_SIM_MEMORY": memory}
    more |= {"GLAKE_SIM_PHANTOM": "1"}
    if platform.endswith(".json"):
        more |= {"GLAKE_DRIVER": "sim", "GLAKE_SIM_PLATFORMS": platform}
    if subject != "engine":
        more["GLAKE_SIM_DEVICES"] = "1"
    command = [sys.executable, __file__, "--one", subject, way, str(count), str(size)]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{platform} {subject} {way}: {done.stderr.strip()[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def rows(platforms: list[str], count: int, sizes: list[int]) -> list[dict[str, Any]]:
    """A row for each platform, block size and direction, with its subjects' rates."""
    from glake.transfer import bounds

    found = []
    for platform in platforms:
        limit = {
            "h2d": bounds.bound(platform, dst="cuda:0", src="cpu:0"),
            "d2h": bounds.bound(platform, dst="cpu:0", src="cuda:0"),
        }
        for size in sizes:
            for way in WAYS:
                row: dict[str, Any] = {"platform": platform, "way": way, "block": size}
                row["bound"] = limit[way.split()[1]]
                for subject in SUBJECTS:
                    one = elsewhere(platform, subject, way, count, size)
                    row[subject] = one["rate"]
                    row["submit"] = one["submit"]
                row["of_bound"] = row["engine"] / row["bound"]
                found.append(row)
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def show(found: list[dict[str, Any]]) -> None:
    """Prints the rows as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Blocks in random order: GB/s of virtual time", title_justify="left")
    for heading in ("platform", "way", "block", *SUBJECTS, "bound", "of bound", "submit ms"):
        table.add_column(heading, justify="left" if heading in ("platform", "way") else "right")
    for row in found:
        figures = [f"{row[subject]:.1f}" for subject in (*SUBJECTS, "bound")]
        table.add_row(row["platform"], row["way"], f"{row['block'] >> 10} KiB", *figures,
                      f"{row['of_bound']:.2f}", f"{row['submit']:.1f}")  # fmt: skip
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--platform", action="append")
    parser.add_argument("--blocks", type=int, default=50_000)
    parser.add_argument("--size", type=int, action="append", help="of a block, in KiB")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        subject, way, count, size = options.one
        print(json.dumps(measure(subject, way, int(count), int(size))))
        return 0
    sizes = [kib << 10 for kib in options.size or (4, 16, 64)]
    found = rows(options.platform or list(PLATFORMS), options.blocks, sizes)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
