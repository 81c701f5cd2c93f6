"""The stand-ins for CUDA's libraries (docs/real.md), and the environment that makes a program use
them.

Nothing is installed. A child process is started with the libraries preloaded by their full paths.
Preloaded libraries come before the DT_RPATH of PyTorch's libraries, and LD_LIBRARY_PATH does not.
So this works beside installed NVIDIA wheels too.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from glake import arguments, library_path
from glake.errors import DriverAbsent, InvalidArgument, WrongType

# The libraries for every version of CUDA, and then those for each major version.
_COMMON = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudnn.so.9",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libcurand.so.10",
    "libcufile.so.0",
    "libnccl.so.2",
    "libnvshmem_host.so.3",
)
_BY_MAJOR = {
    12: (
        "libcudart.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcusolver.so.11",
        "libcufft.so.11",
        "libnvrtc.so.12",
        "libcupti.so.12",
    ),
    13: (
        "libcudart.so.13",
        "libcublas.so.13",
        "libcublasLt.so.13",
        "libcusolver.so.12",
        "libcufft.so.12",
        "libnvrtc.so.13",
        "libcupti.so.13",
    ),
}


def folder() -> Path:
    """The folder of the libraries. Raises DriverAbsent if they were not built."""
    path = library_path().parent / "cuda"
    if not path.is_dir():
        raise DriverAbsent(
            f"the stand-ins for CUDA's libraries are not in {path}: reinstall glake, or run `make "
            "build` in a checkout"
        )
    return path


def libraries(cuda: int = 13) -> list[Path]:
    """The files that a program built with CUDA `cuda` (12 or 13) loads, in the order to preload
    them.

    Raises DriverAbsent if one is missing, and InvalidArgument for another CUDA.
    """
    if cuda not in _BY_MAJOR:
        raise InvalidArgument(
            f"CUDA {cuda} has no stand-ins: they are of CUDA {' and '.join(map(str, _BY_MAJOR))}; "
            "take a build of PyTorch with one of these"
        )
    files = [folder() / name for name in (*_COMMON, *_BY_MAJOR[cuda])]
    absent = [file.name for file in files if not file.exists()]
    if absent:
        raise DriverAbsent(f"{folder()} lacks {', '.join(absent)}: reinstall glake")
    return files


def environment(env: Mapping[str, str], cuda: int = 13) -> dict[str, str]:
    """An environment in which a program built with CUDA runs over the stand-ins.

    The stand-ins are appended to LD_PRELOAD. LD_LIBRARY_PATH begins with their folder, for programs
    that open the driver by its name.

    Args:
        env: the environment to start from, which is not changed.
        cuda: the version of CUDA, 12 or 13.

    Raises:
        WrongType: `env` is no mapping.
        DriverAbsent: the stand-ins were not built.
        InvalidArgument: another CUDA, or a path that LD_PRELOAD cannot contain.
    """
    if not isinstance(env, Mapping):
        raise WrongType(f"an environment is a mapping, not {arguments.type_name(env)}")
    files = libraries(cuda)
    if any(sign in str(folder()) for sign in (":", " ", "\t", "\n")):
        raise InvalidArgument(
            f"{str(folder())!r} has a colon or a blank, which no list of libraries to preload can "
            "hold: install glake at a path without"
        )
    changed = dict(env)
    preload = [entry for entry in (env.get("LD_PRELOAD"), *map(str, files)) if entry]
    search = [entry for entry in (str(folder()), env.get("LD_LIBRARY_PATH")) if entry]
    changed["LD_PRELOAD"] = os.pathsep.join(preload)
    changed["LD_LIBRARY_PATH"] = os.pathsep.join(search)
    # A run on a GPU must not find kernels that were "compiled" at run time here.
    changed["USE_PYTORCH_KERNEL_CACHE"] = "0"
    return changed
