"""Brings the symbol lists of the CUDA stand-ins up to date with a CUDA build of PyTorch or CuPy.

    tools/cuda_symbols.py FOLDER [--version "torch 2.14.1"] [--check]

FOLDER has the package's libraries, such as torch/lib. Reads which names these need from NVIDIA's
libraries (nm, readelf; nothing is run). Names that no list has yet are added to
simcuda/runtime/standins/lists/NAME.def as
UNSUPPORTED. What a name does is then decided by hand, in the list. Names are never removed, so that
the lists are the union over all releases. --check writes nothing, and exits with 1 if names
are missing.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = ROOT / "simcuda" / "runtime"
LISTS = RUNTIME / "standins" / "lists"
# (beginning of a name, library that has the name). The first row that fits counts.
PREFIXES = (
    ("cublasLt", "cublasLt"),
    ("cublas", "cublas"),
    ("cudnn", "cudnn"),
    ("cusparseLt", "cusparseLt"),
    ("cusparse", "cusparse"),
    ("cusolver", "cusolver"),
    ("cufft", "cufft"),
    ("curand", "curand"),
    ("nvrtc", "nvrtc"),
    ("cupti", "cupti"),
    ("cuFile", "cufile"),
    ("nvshmem", "nvshmem_host"),
    ("nccl", "nccl"),
    ("cu", "cuda"),
)
_KIND = re.compile(r"^(?:WRITTEN|LAUNCH\w*|HARMLESS|UNSUPPORTED\w*)\((\w+)")
_DRIVER = re.compile(r"cu[A-Z]")


def library_of(symbol: str) -> str | None:
    """The list that a name belongs to. None: the name is not NVIDIA's, or it is one of the CUDA
    runtime, whose functions are written by hand."""
    if symbol.startswith(("cuda", "__cuda", "curandState")):
        return None
    for prefix, library in PREFIXES:
        if symbol.startswith(prefix):
            return library if prefix != "cu" or _DRIVER.match(symbol) else None
    return None


def wanted(libraries: Iterable[Path]) -> dict[str, set[str]]:
    """The undefined names of the libraries, by list. "cudart" has those of the CUDA runtime."""
    names: dict[str, set[str]] = {"cudart": set()}
    for path in libraries:
        text = subprocess.run(
            ["nm", "-D", "--undefined-only", str(path)], check=True, capture_output=True, text=True
        ).stdout
        for line in text.splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            if version.startswith("libcudart"):
                names["cudart"].add(symbol)
            elif library := library_of(symbol):
                names.setdefault(library, set()).add(symbol)
    return names


def listed(library: str) -> set[str]:
    """The names in a list."""
    path = LISTS / f"{library}.def"
    lines = path.read_text().splitlines() if path.exists() else []
    return {match[1] for line in lines if (match := _KIND.match(line))}


def exported(folder: Path) -> set[str]:
    """The functions that the hand-written sources of a folder define."""
    pattern = re.compile(
        r"(?:CUDART\(|CUDART_EXPORT [^=;{]*?[ *])(\w+)\)?\s*\(|CUDART_ABSENT\((cuda\w+)\)"
    )
    found = [pattern.findall(source.read_text()) for source in folder.glob("*.cpp")]
    return {name for pairs in found for pair in pairs for name in pair if name}


def missing(names: dict[str, set[str]]) -> dict[str, list[str]]:
    """The names that nothing here provides, by list. simcuda provides names of libcuda."""
    driver = {
        match[1]
        for source in RUNTIME.parent.glob("*.*")
        if source.suffix in (".cpp", ".h")
        for match in re.finditer(r"\b(cu[A-Z]\w+)", source.read_text())
    }
    found: dict[str, list[str]] = {}
    for library, symbols in names.items():
        have = exported(RUNTIME / "cudart") if library == "cudart" else listed(library)
        absent = symbols - have - (driver if library == "cuda" else set())
        if absent:
            found[library] = sorted(absent)
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default="a package not named")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    libraries = sorted(options.folder.rglob("*.so"))
    if not libraries:
        parser.error(f"{options.folder} has no libraries: name one such as torch/lib of a wheel")
    absent = missing(wanted(libraries))
    for library, symbols in absent.items():
        print(f"{library}: {' '.join(symbols)}")
        if options.check or library == "cudart":
            continue
        path = LISTS / f"{library}.def"
        lines = [f"// First asked for by {options.version}."]
        lines += [f"UNSUPPORTED({symbol})" for symbol in symbols]
        before = path.read_text() if path.exists() else ""
        path.write_text(before + "\n".join(lines) + "\n")
    if "cudart" in absent:
        print("functions of the runtime are written by hand: runtime/cudart", file=sys.stderr)
    return 1 if absent and (options.check or "cudart" in absent) else 0


if __name__ == "__main__":
    sys.exit(main())
