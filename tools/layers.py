"""Checks that includes point down: a folder of the C++ sources may include only lower folders.

    python tools/layers.py [--draw]

The order is that of the table in docs/design.md. Prints each include that points up. If there is
one, the exit code is 1. `--draw` instead prints each folder and the folders that it includes.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "glake" / "csrc"
# The layers, the lowest first. Folders in one row do not include each other.
LAYERS = (
    ("include/glake",),
    ("base",),
    # `intercept` is a library of its own, which calls glake only through the C interface.
    ("driver", "plan", "intercept"),
    ("memory", "watch"),
    ("heap",),
    ("debug", "ipc"),
    ("transfer/remote",),
    ("transfer/buffers",),
    ("transfer/call",),
    ("transfer/run",),
    ("transfer",),
    ("process",),
    ("capi",),
    ("replay", "torch"),
    ("python",),
)
# simcuda is a library of its own. It may include only these folders of glake. glake may include
# only simcuda's public headers.
SIMCUDA_MAY = ("base", "plan")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def folder_of(path: Path) -> str:
    """The folder in LAYERS to which a source belongs: the longest with which its path begins."""
    for root in (CSRC, ROOT / "glake"):
        if path.is_relative_to(root):
            name = str(path.relative_to(root).parent)
            names = [one for row in LAYERS for one in row]
            fitting = [one for one in names if name == one or name.startswith(one + "/")]
            if fitting:
                return max(fitting, key=len)
    return "simcuda" if path.is_relative_to(ROOT / "simcuda") else "?"


def target_of(source: Path, included: str) -> Path | None:
    """The file that an include names. None: a file of the system or of another project."""
    roots = (source.parent, CSRC, ROOT / "glake" / "include", ROOT / "simcuda" / "include", ROOT)
    found = (root / included for root in roots if (root / included).is_file())
    target = next(found, None)
    return target.resolve() if target is not None else None


def allowed(source: str, target: str, path: Path) -> bool:
    """Whether a file in folder `source` may include `path`, which is in folder `target`."""
    if source == target:
        return True
    if target == "simcuda":
        return path.is_relative_to(ROOT / "simcuda" / "include")
    if source == "simcuda":
        return target in SIMCUDA_MAY
    height = {one: row for row, names in enumerate(LAYERS) for one in names}
    return height[target] < height[source]


def main() -> int:
    """Prints each include that points up, or with --draw all of them."""
    arrows: dict[str, set[str]] = defaultdict(set)
    wrong = []
    for root in (CSRC, ROOT / "glake" / "include", ROOT / "simcuda"):
        for path in sorted(root.rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu"):
                continue
            source = folder_of(path)
            for included in INCLUDE.findall(path.read_text()):
                target = target_of(path, included)
                if target is None:
                    continue
                folder = folder_of(target)
                arrows[source].add(folder)
                if "?" in (source, folder) or not allowed(source, folder, target):
                    wrong.append(f"{path.relative_to(ROOT)} includes {included} ({folder})")
    if "--draw" in sys.argv:
        for source, targets in arrows.items():
            print(f"{source:18} -> {', '.join(sorted(targets - {source}))}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
