"""Compiles glake's GPU kernels to PTX text, without nvcc, and checks what is committed.

    tools/kernels.py [--check] [--verify] [--nvrtc LIBRARY] [--ptxas PROGRAM]

Without options it writes the PTX of every kernel of glake/csrc/transfer/run/kernels into a .ptx
file beside it, which CMake puts into a header.
--check: only says whether this would change a file. --verify: assembles the committed PTX for
several GPUs with ptxas. Both compilers come from pip, need no GPU, and are no dependency of glake:

    pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-nvcc-cu12

Exits 1 if something differs or is refused.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "glake" / "csrc" / "transfer" / "run" / "kernels"
TARGET = "compute_70"  # the driver compiles it for any later GPU
# The oldest PTX version that has all instructions of the kernels. A driver refuses PTX of a newer
# version than its own, even if it knows all instructions in it. ptxas refuses instructions that are
# newer than the version (--verify).
VERSION = "7.0"
GPUS = ("sm_70", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


def find(package: str, pattern: str) -> str | None:
    """A file of one of NVIDIA's packages in this Python, or None."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or [] if spec is not None else []:
        for found in sorted(Path(place, package).glob(pattern)):
            return str(found)
    return None


class Nvrtc:
    """NVRTC, by ctypes. Raises OSError if the library cannot be opened."""

    def __init__(self, path: str) -> None:
        """Opens the library."""
        self._library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def compile(self, source: Path) -> str:
        """The PTX of a source. Raises RuntimeError with the compiler's messages."""
        program = ctypes.c_void_p()
        text, name = source.read_bytes(), source.name.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, name, 0, None, None)
        options = [f"--gpu-architecture={TARGET}".encode(), b"--std=c++14", b"-default-device"]
        given = (ctypes.c_char_p * len(options))(*options)
        code = self._library.nvrtcCompileProgram(program, len(options), given)
        if code != 0:
            raise RuntimeError(f"{source}:\n{self._text(program, 'ProgramLog')}")
        return self._text(program, "PTX")

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.value.decode()


def plain(ptx: str) -> str:
    """The PTX without the compiler's comments, which name the compiler's build. Its version becomes
    `VERSION`."""
    lines = [line.rstrip() for line in re.sub(r"//.*", "", ptx).splitlines()]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
    return re.sub(r"\.version \S+", f".version {VERSION}", text)


def verify(ptxas: str, made: Path) -> list[str]:
    """Assembles the PTX for every GPU. Returns a line for each GPU for which ptxas refuses it."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for gpu in GPUS:
            command = [ptxas, f"-arch={gpu}", "-v", "-o", str(Path(folder, "cubin")), str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            used = re.findall(r"Used (\d+) registers", done.stderr)
            spilt = re.findall(r"(\d+) bytes spill", done.stderr)
            if done.returncode != 0:
                wrong.append(f"{made.name} for {gpu}: {done.stderr.strip()}")
            else:
                print(f"{made.name} {gpu}: {', '.join(used)} registers, {max(spilt)} bytes spilt")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--nvrtc", default=find("cuda_nvrtc", "lib/libnvrtc.so.*"))
    parser.add_argument("--ptxas", default=find("cuda_nvcc", "bin/ptxas") or shutil.which("ptxas"))
    options = parser.parse_args()
    sources = sorted(KERNELS.glob("*.cu"))
    wrong: list[str] = []
    if options.verify:
        if options.ptxas is None:
            parser.error("no ptxas: pip install nvidia-cuda-nvcc-cu12, or give --ptxas")
        for source in sources:
            wrong += verify(options.ptxas, source.with_suffix(".ptx"))
    if options.check or not options.verify:
        if options.nvrtc is None:
            parser.error("no NVRTC: pip install nvidia-cuda-nvrtc-cu12, or give --nvrtc")
        compiler = Nvrtc(options.nvrtc)
        for source in sources:
            made, text = source.with_suffix(".ptx"), plain(compiler.compile(source))
            if options.check and (not made.exists() or made.read_text() != text):
                wrong.append(
                    f"{made.name} is not what NVRTC {compiler.version} makes of {source.name}"
                )
            elif not options.check:
                made.write_text(text)
                print(f"{made.relative_to(ROOT)}, by NVRTC {compiler.version}")
    for words in wrong:
        print(words, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
