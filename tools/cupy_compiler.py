"""The compilers of CuPy's build for the stand-ins (tools/cupy_build.py).

    tools/cupy_compiler.py nvcc|c++ ARGUMENTS...

As nvcc it makes an empty object of any .cu file, because no kernel runs over the stand-ins. As c++
it is g++ (or GLAKE_CXX), and compiles the modules of STUBBED with CuPy's own stubs
(CUPY_NO_CUDA), whose functions succeed and do nothing. Those modules call device code, or
libraries of NVIDIA whose headers would be 1.2 GB of wheels.
"""

import os
import subprocess
import sys

STUBBED = (
    "cupy/cuda/cub.cpp",
    "cupy/cuda/cufft.cpp",
    "cupy/cuda/jitify.cpp",
    "cupy/cuda/thrust.cpp",
    "cupy/fft/_cache.cpp",
    "cupy/fft/_callback.cpp",
    "cupy/random/_bit_generator.cpp",
    "cupy/random/_generator_api.cpp",
    "cupy_backends/cuda/libs/cublas.cpp",
    "cupy_backends/cuda/libs/curand.cpp",
    "cupy_backends/cuda/libs/cusolver.cpp",
    "cupy_backends/cuda/libs/cusparse.cpp",
    "cupyx/_cusolver.cpp",
)


def command(kind: str, given: list[str]) -> list[str]:
    """The command to run in place of the compiler."""
    compiler = os.environ.get("GLAKE_CXX", "g++")
    if kind == "nvcc":
        return [compiler, "-x", "c++", "-c", os.devnull, "-o", given[given.index("-o") + 1]]
    stubbed = any(name.endswith(STUBBED) for name in given)
    return [compiler, *(["-DCUPY_NO_CUDA=1"] if stubbed else []), *given]


if __name__ == "__main__":
    sys.exit(subprocess.call(command(sys.argv[1], sys.argv[2:])))
