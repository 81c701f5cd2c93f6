"""Inference of a model larger than its GPU, whose layers glake or accelerate pages in.

paging.py runs PyTorch's CUDA build over the simulated GPU (`make real-environment`, `make
integration-environment`), whose clock counts copies and kernels by its model. It prints the least
time of three passes of 16 linear layers of 144 MiB on a GPU of 1 GiB, alone or one of eight, and
the peak of allocated memory. `sequential` is accelerate's cpu_offload, which diffusers calls
enable_sequential_cpu_offload. `alternate` copies each layer back. `frozen` leaves the host's copy
in place.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH, LAYERS, PASSES = 6144, 16, 3
WAYS = ("sequential", "alternate", "frozen")


def measure(way: str) -> dict[str, float]:
    """Milliseconds of a pass, and MiB at the peak, in this process."""
    import torch

    from glake import simcuda, transfer

    x = torch.randn(256, WIDTH).cuda()
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)

    def timed(run: Callable[[], object]) -> dict[str, float]:
        for _ in range(2):
            run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        took = []
        for _ in range(PASSES):
            begun = simcuda.now_ns()
            run()
            torch.cuda.synchronize()
            took.append((simcuda.now_ns() - begun) / 1e6)
        # The clock goes on while other programs keep this process from running: the least counts.
        return {"ms": min(took), "MiB": torch.cuda.max_memory_allocated() / (1 << 20)}

    with torch.no_grad():
        if way == "sequential":
            from accelerate import cpu_offload

            cpu_offload(model, execution_device=torch.device("cuda:0"))
            return timed(lambda: model(x))
        offloader = transfer.Offloader("4GiB")
        for layer in model:
            offloader.offload(layer.cuda()).wait()
        with offloader.alternate(model, frozen=way == "frozen"):
            return timed(lambda: model(x))


def main() -> None:
    if len(sys.argv) == 3:
        sys.path.append(sys.argv[2])  # accelerate; torch is this Python's own
        print(json.dumps(measure(sys.argv[1])))
        return
    from glake.dryrun import libraries

    packages = next((ROOT / ".venv-frameworks" / "lib").glob("python*/site-packages"))
    asked = {"GLAKE_DRIVER": "cuda", "GLAKE_SIM_MEMORY": "1GiB", "GLAKE_STRICT": "1"}
    print(f"{'':12}{'GPUs':>6}{'ms a pass':>12}{'peak MiB':>12}   simulated")
    for gpus, way in [(gpus, way) for gpus in (1, 8) for way in WAYS]:
        asked |= {"GLAKE_SIM_DEVICES": str(gpus)}
        env = libraries.environment({**os.environ, **asked, "GLAKE_ALLOCATOR": "1"})
        command = [str(ROOT / ".venv-real/bin/python"), __file__, way, str(packages)]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
        told = json.loads(done.stdout.splitlines()[-1])
        print(f"{way:12}{gpus:6}{told['ms']:12.1f}{told['MiB']:12.0f}", flush=True)


if __name__ == "__main__":
    main()
