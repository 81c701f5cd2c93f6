"""Compares what glake's libraries export with the committed lists in tools/abi/.

    python tools/abi.py [--write]

Prints each name that is gone or new. If there is one, the exit code is 1. Other programs may call
exported names. C++ names are left out, because only libraries of the same build use them. `--write`
writes the lists again.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("libglake.so", "libglake_intercept.so", "libsimcuda.so")


def exported(library: Path) -> list[str]:
    """The names that a library exports, in order, without those of C++."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=posix", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[0].partition("@")[0] for line in listed.stdout.splitlines()}
    return sorted(name for name in names if not name.startswith("_"))


def committed(library: str) -> Path:
    """The list that a library is compared with."""
    return ROOT / "tools" / "abi" / f"{library}.txt"


def changes(library: str, names: list[str]) -> list[str]:
    """A line for each name that is gone from the committed list, or new."""
    known = set(committed(library).read_text().split())
    gone = [f"{library} no longer exports {name}" for name in sorted(known - set(names))]
    return [*gone, *(f"{library} exports {name}, as new" for name in names if name not in known)]


def main() -> int:
    """The exit status of the check."""
    found = {name: exported(ROOT / "glake" / "lib" / name) for name in LIBRARIES}
    if "--write" in sys.argv[1:]:
        for name, names in found.items():
            committed(name).parent.mkdir(exist_ok=True)
            committed(name).write_text("\n".join(names) + "\n")
        return 0
    told = [line for name, names in found.items() for line in changes(name, names)]
    print("\n".join([*told, f"{len(told)} changes"]))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
