"""Two users of one GPU take turns: the memory of one goes to the host, the other's comes back.

handover.py [--size GIB] [--platform NAME]... [--completion polled|instant]: each platform has a
process of its own, on the simulator. The clock counts driver work and copies, but not the CPU's
checksums of host memory, which several threads compute meanwhile (8 to 10 GB/s each). Beside
glake's regions are plain copies one after the other. Libraries that hook cudaMalloc
(torch_memory_saver, vLLM's cumem) make such copies of pinned memory. For copies of pageable memory
the simulator leaves out the driver's staging, so a GPU is slower there. Rates are GB/s of both
directions together. The bound is that of two copies at equal rates.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

GIB = 1 << 30
BLOCK = 256 << 20
PLATFORMS = ("dgx_a100", "hgx_h100_h200")
WAYS = ("pageable", "pinned", "regions in turn", "regions at once")


def measure(platform: str, size: int) -> dict[str, float]:
    """Measures GB/s of each way, and the bound, in this process, which has that platform's
    driver."""
    import numpy as np

    import glake
    from glake import simcuda, transfer
    from glake.transfer import bounds
    from glake.transfer.place import graph_of

    transfer.default_engine()
    kept = []
    for name in ("trainer", "rollout"):
        with glake.region(name):
            kept.append([glake.empty(BLOCK, 0) for _ in range(size // BLOCK)])
    glake.pause("rollout")  # from now on host memory for both is pinned
    glake.pause("trainer")
    glake.resume("trainer")

    def rate(work: Callable[[], None]) -> float:
        begun = simcuda.now_ns()
        work()
        return 2 * size / (simcuda.now_ns() - begun)

    def in_turn(out: str, back: str) -> None:
        glake.pause(out)
        glake.resume(back)

    def at_once(out: str, back: str) -> None:
        ways = (glake.pause, out), (glake.resume, back)
        threads = [threading.Thread(target=way, args=(name,)) for way, name in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = {
        "regions in turn": rate(lambda: in_turn("trainer", "rollout")),
        "regions at once": rate(lambda: at_once("rollout", "trainer")),
    }
    blocks = [transfer.Raw(buffer.ptr, BLOCK, 0) for buffer in kept[0]]

    def plain(host: Any) -> None:
        for block in blocks:
            transfer.copy(host, block, direct=True).wait()
        for block in blocks:
            transfer.copy(block, host, direct=True).wait()

    hosts = {"pinned": transfer.pinned(BLOCK), "pageable": np.empty(BLOCK, np.uint8)}
    for name, host in hosts.items():
        found[name] = rate(lambda host=host: plain(host))
    ends: list[bounds.Ends] = [{"dst": "cpu", "src": "cuda:0"}, {"dst": "cuda:0", "src": "cpu"}]
    found["bound"] = 2 * bounds.joint_bound(graph_of(platform), ends).fair
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=16, help="GiB of each of the two")
    parser.add_argument("--platform", action="append", help="; ".join(PLATFORMS))
    parser.add_argument("--completion", default="polled", choices=("polled", "instant"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child, given.size * GIB)))
        return
    print(f"{given.size} GiB each way, GB/s of both together, simulated, {given.completion}")
    print(f"{'':16}" + "".join(f"{way:>17}" for way in (*WAYS, "bound", "of the bound")))
    for platform in given.platform or PLATFORMS:
        env = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
        env |= {
            "GLAKE_DRIVER": f"sim:{platform}",
            "GLAKE_SIM_PHANTOM": "1",
            "GLAKE_SIM_MEMORY": "80GiB",
            "GLAKE_SIM_COMPLETION": given.completion,
        }
        command = [sys.executable, __file__, "--size", str(given.size), "--child", platform]
        told = json.loads(subprocess.run(command, env=env, stdout=-1, check=True).stdout)
        row = [f"{told[way]:17.1f}" for way in (*WAYS, "bound")]
        share = told["regions at once"] / told["bound"]
        print(f"{platform:16}" + "".join(row) + f"{share:17.3f}", flush=True)


if __name__ == "__main__":
    main()
