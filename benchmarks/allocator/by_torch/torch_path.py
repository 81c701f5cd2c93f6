"""torch_path.py NAME SECONDS: compiles torch_path.cpp, runs one round, and prints its rows.

It compiles against this Python's torch, and measures the allocator in force.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch

from glake.allocator.adapter_build import cuda_headers

SOURCE = Path(__file__).with_suffix(".cpp")
HEADERS = [SOURCE.parents[1] / name for name in ("workload.h", "measure.h")]
BUILT = SOURCE.parents[3] / "build" / "torch_path"


def built() -> Path:
    root = Path(torch.__file__).parent
    digest = hashlib.sha256(torch.__version__.encode())
    for source in (SOURCE, *HEADERS):
        digest.update(source.read_bytes())
    target = BUILT / f"torch_path-{digest.hexdigest()[:16]}.so"
    if target.exists():
        return target
    BUILT.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")  # another process may be compiling it too
    includes = [root / "include", *cuda_headers()]
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall"]
    command += [word for folder in includes for word in ("-isystem", str(folder))]
    command += [str(SOURCE), "-o", str(part), f"-L{root / 'lib'}", "-lc10", "-lc10_cuda"]
    subprocess.run(command, check=True)
    part.rename(target)
    return target


def main() -> None:
    torch.empty(1, device="cuda")
    library = ctypes.CDLL(str(built()))
    sys.exit(library.torch_path(sys.argv[1].encode(), ctypes.c_double(float(sys.argv[2]))))


if __name__ == "__main__":
    main()
