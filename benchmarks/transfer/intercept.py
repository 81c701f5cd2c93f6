"""A program's own copies, plain and carried by the preloaded library (docs/intercept.md).

intercept.py [--platform NAME]... [--size MiB]...: this file also is a program that knows nothing of
glake. It copies between pinned memory and cuda:0 by the driver's cuMemcpyHtoDAsync and
cuMemcpyDtoHAsync, and waits for each copy. It runs once alone and once under `glake run
--intercept`. Rates are GB/s on the simulator's clock. "polled" adds the time in which a thread sees
the end of a copy (GLAKE_SIM_COMPLETION). The bound is that of all paths from memory of the GPU's
own socket.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20
PLATFORMS = ("hgx_h100_h200", "dgx_a100")
SIZES = (64, 256, 1024)
REPEATS = 5


def program(sizes: list[int]) -> None:
    """The program, which uses nothing of glake. Prints GB/s by direction and size."""
    cuda = ctypes.CDLL("libcuda.so.1")
    now = ctypes.CDLL(None).simcuda_now_ns
    now.restype = ctypes.c_uint64
    pointer, size_t = ctypes.c_void_p, ctypes.c_size_t

    def ok(code: int) -> None:
        if code != 0:
            raise RuntimeError(f"the driver gave {code}")

    context, stream, host, gpu = pointer(), pointer(), pointer(), ctypes.c_uint64()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    ok(cuda.cuCtxSetCurrent(context))
    ok(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    most = max(sizes) * MIB
    ok(cuda.cuMemHostAlloc(ctypes.byref(host), size_t(most), 0))
    ok(cuda.cuMemAlloc_v2(ctypes.byref(gpu), size_t(most)))

    def rate(up: bool, size: int) -> float:
        begun = now()
        if up:
            ok(cuda.cuMemcpyHtoDAsync_v2(gpu, host, size_t(size), stream))
        else:
            ok(cuda.cuMemcpyDtoHAsync_v2(host, gpu, size_t(size), stream))
        ok(cuda.cuStreamSynchronize(stream))
        return size / (now() - begun)

    found = {}
    for up, name in ((True, "h2d"), (False, "d2h")):
        rate(up, most)  # opens the engine, if there is one
        for size in sizes:
            rates = [rate(up, size * MIB) for _ in range(REPEATS)]
            found[f"{name} {size}"] = statistics.median(rates)
    print(json.dumps(found))


def run(platform: str, sizes: list[int], carried: bool, completion: str) -> dict[str, float]:
    from glake.dryrun import libraries

    env = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    env |= {
        "GLAKE_SIM_PHANTOM": "1",
        "GLAKE_SIM_MEMORY": "80GiB",
        "GLAKE_SIM_COMPLETION": completion,
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--program", *map(str, sizes)]
    if carried:
        glake = [sys.executable, "-m", "glake.cli", "run", "--intercept"]
        command = [*glake, "--driver", f"sim:{platform}", *command]
    else:
        env = libraries.environment(env | {"GLAKE_SIM_PRESET": platform})
    told = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, float] = json.loads(told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", action="append", help="; ".join(PLATFORMS))
    parser.add_argument("--size", action="append", type=int, help="MiB of a copy")
    parser.add_argument("--program", nargs="+", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        program(given.program)
        return
    from glake.platform_file import preset_file

    bounds = json.loads(preset_file().read_text())
    sizes = given.size or list(SIZES)
    columns = ("plain", "carried", "x", "carried, polled", "x", "bound")
    print("GB/s, simulated")
    print(f"{'':14}{'':4}{'MiB':>6}" + "".join(f"{name:>17}" for name in columns))
    for platform in given.platform or PLATFORMS:
        plain = run(platform, sizes, False, "instant")
        carried = {each: run(platform, sizes, True, each) for each in ("instant", "polled")}
        for way in ("h2d", "d2h"):
            for size in sizes:
                key = f"{way} {size}"
                instant, polled = (carried[each][key] for each in ("instant", "polled"))
                numbers = (plain[key], instant, instant / plain[key], polled, polled / plain[key])
                row = "".join(f"{number:17.2f}" for number in numbers)
                bound = bounds[platform]["bounds"][f"{way} local"]["bound"]
                print(f"{platform:14}{way:>4}{size:>6}{row}{bound:17.1f}", flush=True)


if __name__ == "__main__":
    main()
