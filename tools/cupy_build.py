"""Builds CuPy with the shared CUDA runtime, so that it runs over the stand-ins (docs/real.md).

    tools/cupy_build.py --python PYTHON --folder FOLDER [--jobs 2]

CuPy's wheels contain NVIDIA's static runtime, which does not start there. This has pip build the
source package into the environment of PYTHON, with a CUDA folder made for it in FOLDER: the
stand-ins are its libraries, and its libcudart_static.a names the shared one. Its compilers are
tools/cupy_compiler.py. The runtime's headers are those of CUDA_HOME or /usr/local/cuda.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = "14.2.0"
LIBRARIES = {
    "cublas": "libcublas.so.13",
    "cuda": "libcuda.so.1",
    "cudart": "libcudart.so.13",
    "cufft": "libcufft.so.12",
    "curand": "libcurand.so.10",
    "cusolver": "libcusolver.so.12",
    "cusparse": "libcusparse.so.12",
    "nvrtc": "libnvrtc.so.13",
}
# Headers that the runtime's wheels lack and CuPy looks for. Here they declare nothing but the
# profiler's two functions: modules that need more are compiled with stubs.
OTHER_HEADERS = (
    "cublas_v2.h",
    "cuda_profiler_api.h",
    "cufft.h",
    "curand.h",
    "cusolverDn.h",
    "cusparse.h",
    "nvrtc.h",
)


def make_cuda_folder(folder: Path, headers: Path) -> None:
    """A folder that CuPy takes for a CUDA toolkit: to be built with, and later for NVRTC."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "include").mkdir(parents=True)
    (folder / "lib64").mkdir()
    for header in headers.iterdir():
        (folder / "include" / header.name).symlink_to(header.resolve())
    for name in OTHER_HEADERS:
        if not (headers / name).exists():
            shutil.copy(ROOT / "tools" / "cupy_other_headers.h", folder / "include" / name)
    for name, file in LIBRARIES.items():
        (folder / "lib64" / f"lib{name}.so").symlink_to(ROOT / "glake" / "lib" / "cuda" / file)
    (folder / "lib64" / "libcudart_static.a").write_text("INPUT(-lcudart)\n")  # a linker script


def build(python: str, folder: Path, jobs: int) -> int:
    """Installs CuPy. Returns pip's exit status."""
    headers = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    if not (headers / "cuda_runtime_api.h").exists():
        raise SystemExit(f"{headers} has no cuda_runtime_api.h: set CUDA_HOME")
    make_cuda_folder(folder, headers)
    compiler = [sys.executable, str(ROOT / "tools" / "cupy_compiler.py")]
    flags = "-O1 -g0 -w"
    environment = os.environ | {
        "CFLAGS": flags,
        "CUDA_PATH": str(folder),
        "CUPY_INSTALL_NO_RPATH": "1",
        "CUPY_NUM_BUILD_JOBS": str(jobs),
        "CXX": shlex.join([*compiler, "c++"]),
        "CXXFLAGS": flags,
        "NVCC": shlex.join([*compiler, "nvcc"]),
    }
    # Not from pip's cache and not into it: nobody else may be given this build.
    options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--force-reinstall"]
    options += ["--no-binary", "cupy"]
    return subprocess.call(
        [python, "-m", "pip", "install", *options, f"cupy=={VERSION}"], env=environment
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    return build(options.python, options.folder.resolve(), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
