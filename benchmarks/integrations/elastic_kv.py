"""Prints what vLLM holds with its own KV cache and with the elastic one, on a simulated GPU.

The job is a way of tests/frameworks/programs/vllm_elastic.py. It needs the environment of `make
integration-vllm-cuda`, and takes two minutes.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from glake.dryrun import libraries

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "frameworks" / "programs" / "vllm_elastic.py"
PYTHON = ROOT / ".venv-vllm-cuda" / "bin" / "python"
ROWS = {
    "stock": "vLLM's own, `gpu_memory_utilization=0.8`",
    "elastic": "elastic, `keep` of 64 MiB",
}


def told(way: str, folder: str) -> Any:
    asked = {
        "GLAKE_ALLOCATOR": "1",
        "GLAKE_DRIVER": "cuda",
        "GLAKE_SIM_MEMORY": "1GiB",
        "GLAKE_STRICT": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    done = subprocess.run(
        [str(PYTHON), str(PROGRAM), way, folder],
        env=libraries.environment({**os.environ, **asked}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    print("| KV cache | held when idle, MiB | at most with the requests | afterwards |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for way, name in ROWS.items():
            said = told(way, folder)
            held = said["idle"], said["loaded"]["peak"], said["after"]
            print(f"| {name} |", " | ".join(f"{each / (1 << 20):.0f}" for each in held), "|")


if __name__ == "__main__":
    main()
