"""Compiles the CUDA adapter against the headers of several torch minors.

    tools/header_matrix.py [--cache DIR] [--fetch] [VERSION]...

Headers come from DIR/<version>/torch/include. With --fetch, missing ones are unpacked from torch's
macOS wheels, the smallest that have them (about 100 MB each, removed afterwards). Nothing of torch
is run. The exit code is 1 if a version does not compile or has no headers.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from glake.allocator import adapter_build  # noqa: E402
from glake.errors import GlakeError  # noqa: E402

VERSIONS = ("2.11.0", "2.12.0", "2.13.0", "2.14.1")
KEPT = ("torch/include/c10/", "torch/include/ATen/", "torch/include/torch/headeronly/")


def cache_directory() -> Path:
    """Where headers are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base, "glake-torch-headers").expanduser()


def available(cache: Path) -> list[str]:
    """The versions whose headers are there."""
    return sorted(each.name for each in cache.glob("*") if (each / "torch/include").is_dir())


def fetch(version: str, cache: Path) -> None:
    """Unpacks the headers of a version. Raises CalledProcessError if there is no wheel."""
    with tempfile.TemporaryDirectory() as folder:
        for platform in ("macosx_14_0_arm64", "macosx_11_0_arm64"):
            wanted = ["--platform", platform, "--python-version", "311", f"torch=={version}"]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary=:all:", "--dest", folder, *wanted]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                break
        done.check_returncode()
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith(KEPT)]
            archive.extractall(cache / version, names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, default=cache_directory())
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("versions", nargs="*")
    options = parser.parse_args()
    failed = False
    for version in options.versions or VERSIONS:
        include = options.cache / version / "torch/include"
        try:
            if not include.is_dir() and options.fetch:
                fetch(version, options.cache)
            seconds = adapter_build.check_headers(include)
            print(f"{version:8} compiles ({seconds:.1f} s)", flush=True)
        except (GlakeError, subprocess.CalledProcessError) as error:
            failed = True
            print(f"{version:8} fails: {error}\n{getattr(error, 'stderr', None) or ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
