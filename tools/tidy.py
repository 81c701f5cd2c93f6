"""Runs clang-tidy, by the repository's .clang-tidy, on C++ sources of glake and of simcuda.

Usage: tidy.py [FILE...]; without a file it checks all sources. Sources that need other headers than
CUDA's (torch's, pybind11's) are left out. Headers are left out too, as they are checked with the
sources that include them. Prints what clang-tidy finds; the exit code is 1 if it finds something.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "glake" / "csrc", ROOT / "simcuda" / "driver")
LEFT_OUT = (ROOT / "glake" / "csrc" / "torch", ROOT / "glake" / "csrc" / "python")


def sources(given: list[str]) -> list[Path]:
    """The sources among `given`, or among all, that can be checked."""
    found = [Path(each).resolve() for each in given]
    found = found or sorted(path for folder in FOLDERS for path in folder.rglob("*.cpp"))
    return [
        path
        for path in found
        if path.suffix == ".cpp"
        and any(path.is_relative_to(folder) for folder in FOLDERS)
        and not any(path.is_relative_to(folder) for folder in LEFT_OUT)
    ]


def built_include() -> tuple[Path, Path]:
    """The last build's folder of generated headers, and the folder of the cuda.h that it found.

    Raises SystemExit if nothing has been built.
    """
    for cache in sorted(ROOT.glob("build/cmake-*/CMakeCache.txt")):
        for line in cache.read_text().splitlines():
            if line.startswith("GLAKE_CUDA_INCLUDE:"):
                return cache.parent / "generated", Path(line.partition("=")[2])
    raise SystemExit("tidy.py takes headers from a build: make build first")


def flags() -> list[str]:
    """The flags of CMakeLists.txt that change what a source means."""
    generated, cuda = built_include()
    folders = (
        ROOT,
        ROOT / "glake/csrc",
        ROOT / "glake/include",
        ROOT / "simcuda/include",
        generated,
    )
    return [
        "-std=c++17",
        *(f"-I{folder}" for folder in folders),
        *("-isystem", str(cuda)),
        *('-DGLAKE_VERSION="0"', "-DGLAKE_CUDA_HEADER_VERSION=13000"),
    ]


def main() -> int:
    """The exit status of the check."""
    tool = shutil.which("clang-tidy", path=str(Path(sys.executable).parent))
    if tool is None:
        raise SystemExit("clang-tidy is not installed beside this Python: pip install clang-tidy")
    chosen = sources(sys.argv[1:])
    options = flags() if chosen else []

    def look(path: Path) -> "subprocess.CompletedProcess[str]":
        command = [tool, "--quiet", str(path), "--", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(look, chosen))
    said = [each.stdout + each.stderr for each in done if each.returncode != 0]
    print("\n".join([*said, f"{len(chosen)} sources looked at, {len(said)} with findings"]))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
