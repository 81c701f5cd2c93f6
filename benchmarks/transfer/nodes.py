"""The engines between two nodes, beside each other: two processes of this machine, over loopback.

    python benchmarks/transfer/nodes.py [--engine NAME]... [--mib SIZE] [--rounds N] [--chunk SIZE]
        [--depth N] [--json]

One process exposes SIZE MiB of host memory and as many of a GPU. The other reads and writes them,
from and to its own host memory, in pieces of `chunk` bytes of which `depth` are under way at once.
In each round every engine takes its turn, alone. `GB/s` is the median of the rounds, and `least`
the slowest. What is read back is compared with what was written. `idle` is the CPU time that a node
takes in a second in which nothing is transferred.

GPUs are simulated, with no rate of their own: a copy to or from one is a copy by a core. So the
figures compare engines on this machine. They say nothing about a network or about a GPU. NIXL is
kept to TCP (UCX_TLS), as on a network without RDMA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SECRET = "two processes of one benchmark"
PLACES = ("host", "gpu")
WAYS = ("read", "write")
Figures = dict[tuple[str, str, str], list[float]]  # (place, way, engine): of each round


def settings(arguments: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Those of both nodes."""
    return {
        "secret": SECRET,
        "backend": engine,
        "chunk": arguments.chunk,
        "depth": arguments.depth,
        "host": "127.0.0.1",
    }


def serve(given: str, mib: int) -> None:
    """Exposes memory until the input ends."""
    import numpy as np

    from glake import _C
    from glake import transfer as t

    size = mib << 20
    with t.Node(listen="127.0.0.1:0", **json.loads(given)) as node:
        content = np.arange(size // 8, dtype="uint64").view("uint8")
        gpu = t.Raw(_C.malloc(size, 0), size, 0)
        t.copy(gpu, content).wait()
        node.expose("host", content, writable=True)
        node.expose("gpu", gpu, writable=True)
        print(f">> {node.address}", flush=True)
        sys.stdin.read()


class Other:
    """The node in the other process."""

    def __init__(self, given: dict[str, Any], mib: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(given), "--mib", str(mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = ""
        while not line.startswith(">> "):  # engines print, too
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"the other node has ended with {self.process.wait()}")
        self.address = line[3:].strip()

    def end(self) -> None:
        """Ends it."""
        self.process.communicate()


def measure(arguments: argparse.Namespace) -> Figures:
    """The figures of each case. An engine lives for its own turn only: others' threads poll."""
    import numpy as np

    size = arguments.mib << 20
    memory = np.zeros(size, "uint8")
    content = np.arange(size // 8, dtype="uint64").view("uint8")
    cases = [*((place, way) for place in PLACES for way in WAYS), ("none", "idle")]
    found: Figures = {(*case, engine): [] for case in cases for engine in arguments.engine}
    for _ in range(arguments.rounds):
        for engine in arguments.engine:
            turn(arguments, engine, memory, content, found)
    return found


def turn(
    arguments: argparse.Namespace, engine: str, memory: Any, content: Any, found: Figures
) -> None:
    """Measures an engine once."""
    from glake import transfer as t

    given = settings(arguments, engine)
    other = Other(given, arguments.mib)
    try:
        with t.Node(**given) as node, node.connect(other.address, timeout=60) as peer:
            for way in WAYS:  # the first transfers make connections
                getattr(peer, way)("host", memory, nbytes=min(memory.nbytes, 64 << 20)).wait()
            for place in PLACES:
                for way in ("write", "read"):
                    memory[:] = content if way == "write" else 0
                    began = time.perf_counter()
                    getattr(peer, way)(place, memory).wait()
                    seconds = time.perf_counter() - began
                    if not (memory == content).all():
                        raise SystemExit(f"{engine}, {place}: other bytes came")
                    found[place, way, engine].append(memory.nbytes / seconds / 1e9)
            began = time.process_time()
            time.sleep(1)
            found["none", "idle", engine].append(time.process_time() - began)
    finally:
        other.end()


def table(found: Figures) -> str:
    """The figures as a table."""
    lines = [f"{'memory':8}{'way':8}{'engine':12}{'GB/s':>8}{'least':>8}"]
    for (place, way, engine), each in found.items():
        if way == "idle":
            lines.append(f"{engine}: {statistics.median(each):.3f} s of CPU in an idle second")
        else:
            rate, least = statistics.median(each), min(each)
            lines.append(f"{place:8}{way:8}{engine:12}{rate:8.2f}{least:8.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", help="default: tcp and nixl")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk", default="4MiB")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.mib)
        return
    wanted = {
        "GLAKE_DRIVER": "sim:dgx_a100",
        "GLAKE_SIM_MEMORY": f"{arguments.mib + 256}MiB",
        "UCX_TLS": "tcp",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)  # libraries read them as they are loaded
        os.execv(sys.executable, [sys.executable, *sys.argv])
    arguments.engine = arguments.engine or ["tcp", "nixl"]
    found = measure(arguments)
    if arguments.json:
        print(json.dumps([[*case, each] for case, each in found.items()]))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
