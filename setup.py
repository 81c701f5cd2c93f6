"""Builds the native libraries with CMake. All metadata is in pyproject.toml.

The build directory, build/cmake-<python>, is kept between builds, so a second one is quick.
CMAKE_ARGS (environment) is passed on, for instance CMAKE_ARGS=-DGLAKE_WERROR=ON.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def find_tool(name: str) -> str | None:
    """The tool beside this Python, whose directory need not be on PATH, or else on PATH."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def drop_stale_cache(build: Path) -> None:
    """Removes a build whose tools are gone, as those of pip's isolated environments are."""
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        return
    watched = ("CMAKE_COMMAND:", "CMAKE_MAKE_PROGRAM:", "CMAKE_CXX_COMPILER:", "pybind11_DIR:",
               "GLAKE_CUDA_INCLUDE:", "Python_EXECUTABLE:", "CMAKE_HOME_DIRECTORY:")  # fmt: skip
    values = [
        line.partition("=")[2]
        for line in cache.read_text().splitlines()
        if line.startswith(watched)
    ]
    moved = f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text()
    if moved or any(not Path(value).exists() for value in values if value.startswith("/")):
        shutil.rmtree(build)


class CMakeBuild(build_ext):
    """Configures, builds and installs the libraries into the package being built."""

    def run(self) -> None:
        cmake = find_tool("cmake")
        if cmake is None:
            raise SystemExit("glake needs CMake 3.20 or newer to build: pip install cmake")
        build = ROOT / "build" / f"cmake-{sysconfig.get_config_var('SOABI')}"
        # CMake runs this too. Run here first, a failure prints its one line alone.
        table = [str(ROOT / "tools" / "option_table.py"), f"{build}/generated/base/option_table.h"]
        self._run([sys.executable, "-B", *table])
        drop_stale_cache(build)
        configure = [cmake, "-S", str(ROOT), "-B", str(build)]
        configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
        ninja = find_tool("ninja")
        if ninja and not (build / "CMakeCache.txt").exists():
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        target = ROOT if self.inplace else Path(self.build_lib).resolve()
        self._run(configure)
        self._run([cmake, "--build", str(build), "--parallel", jobs, "--target", "glake_python"])
        install = [cmake, "--install", str(build), "--component", "python"]
        self._run([*install, "--prefix", str(target / "glake")])

    @staticmethod
    def _run(command: list[str]) -> None:
        """Runs one step, whose own output says what is wrong."""
        status = subprocess.run(command).returncode
        if status != 0:
            raise SystemExit(status)


setup(ext_modules=[Extension("glake._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
