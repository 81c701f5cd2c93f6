"""Compiles the torch adapters in csrc/torch with the user's g++ against the installed torch.

Their ABI is torch's, which no wheel of ours can know, so they are built at first use: about a
second each, kept under GLAKE_JIT_DIR (default ~/.cache/glake) by torch build, flags and source.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import glake
from glake import config
from glake.errors import GlakeError

SOURCES = Path(glake.__file__).parent / "csrc"


class AdapterBuildError(GlakeError):
    """The torch adapter could not be compiled; the text says what to install or set."""


def build(name: str) -> Path:
    """The shared library of csrc/torch/<name>.cpp, compiled unless the cache has it.

    Safe from several processes at once. Raises AdapterBuildError: no compiler, no writable
    cache directory, or the compiler's own words.
    """
    command = _command(name)
    target = _cache_directory() / f"{name}-{_key(command)}.so"
    if target.exists():
        return target
    with _lock(target):
        if not target.exists():
            _compile(command, target)
    return target


def _command(name: str) -> list[str]:
    import torch

    root = Path(torch.__file__).resolve().parent
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    return [
        *compiler,
        f"-std=c++{20 if version >= (2, 14) else 17}",
        *("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{SOURCES}",
        *("-isystem", str(root / "include")),
        str(SOURCES / "torch" / f"{name}.cpp"),
        *(f"-L{root / 'lib'}", "-lc10"),
    ]


def _key(command: list[str]) -> str:
    import torch

    digest = hashlib.sha256()
    about = [torch.__version__, str(torch.version.git_version), platform.machine(), *command]
    digest.update("\0".join(about).encode())
    for source in (*sorted((SOURCES / "torch").glob("*.*")), SOURCES / "capi.h"):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:20]


def _cache_directory() -> Path:
    given = config.read().jit_dir
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(given or Path(base, "glake")).expanduser()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise AdapterBuildError(
            f"cannot create {directory} for the compiled torch adapter: {error.strerror}; "
            "set GLAKE_JIT_DIR to a directory you may write"
        ) from error
    return directory


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    try:
        lock = open(target.with_suffix(".lock"), "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise AdapterBuildError(
            f"cannot write in {target.parent}: {error.strerror}; "
            "set GLAKE_JIT_DIR to a directory you may write"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(command: list[str], target: Path) -> None:
    if shutil.which(command[0]) is None:
        raise AdapterBuildError(
            f'no C++ compiler: "{command[0]}" is not on PATH, and glake compiles its torch adapter '
            "at first use; install g++ or name another in CXX"
        )
    # Into a name of its own, then renamed: a reader never sees half a library.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch, target.name)
        done = subprocess.run(
            [*command, "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise AdapterBuildError(
                f"the torch adapter did not compile (exit status {done.returncode}):\n"
                f"{shlex.join(command)}\n{done.stderr[-4000:]}"
            )
        made.replace(target)
