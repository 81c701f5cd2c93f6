"""Compiles the torch adapters in csrc/torch with the user's g++ against the installed torch.

An adapter works only with the build of torch for which it was compiled. A wheel of glake contains
adapters for the builds of torch with which the wheel was made (docs/packaging.md). For any other
torch they are built at first use, in seconds, without nvcc or ninja. They are kept under
GLAKE_JIT_DIR (default ~/.cache/glake) by torch build, flags and source. `glake build-adapter`
builds the CUDA adapter ahead of time. Building does not import torch.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import glake
from glake import config, extras
from glake.errors import AdapterBuildError

SOURCES = Path(glake.__file__).parent / "csrc"
# The headers of glake's C interface, and those of simcuda, which the adapter `numbers` includes.
INCLUDE = (SOURCES.parent / "include", SOURCES.parent / "lib" / "include")
CUDA = "cuda_adapter"
FAKE_CUDA = "fake_cuda"
NUMBERS = "numbers"
CARRIED = SOURCES.parent / "lib" / "adapters"  # the compiled adapters of a wheel


@dataclass(frozen=True)
class Torch:
    """The installed torch: its directory, version ("2.13.0+cpu"), commit, CUDA version or None."""

    root: Path
    version: str
    commit: str
    cuda: str | None


@functools.cache
def installed_torch() -> Torch:
    """Facts about the torch that `import torch` would give. Does not import it.

    Raises AdapterBuildError: there is none.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise AdapterBuildError(f"PyTorch is not installed for {sys.executable}: {extras.TORCH}")
    root = Path(spec.origin).resolve().parent
    facts: dict[str, str | None] = {}
    exec((root / "version.py").read_text(), facts)  # torch's own; it only assigns
    version, commit = str(facts["__version__"]), str(facts.get("git_version"))
    return Torch(root, version, commit, facts.get("cuda"))


def build(name: str) -> Path:
    """The shared library of csrc/torch/<name>.cpp. It is compiled unless the wheel or the cache has
    it.

    Several processes may call it at once. Raises AdapterBuildError if there is no torch, no
    compiler or no writable cache directory, or if the compiler fails; its messages are in the text.
    """
    if (ready := _carried(name)) is not None:
        return ready
    command = _command(name)
    target = _cache_directory() / f"{name}-{_key(command)}.so"
    if target.exists():
        return target
    with _lock(target):
        if not target.exists():
            _compile(command, target)
    return target


def carry(name: str, folder: Path) -> Path:
    """Compiles an adapter for the installed torch into `folder`, for a wheel of glake."""
    made = folder / _carried_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    _compile(_command(name, "$ORIGIN/../../../torch/lib"), made)
    return made


def _carried(name: str) -> Path | None:
    ready = CARRIED / _carried_name(name)
    # The fake device is loaded before torch. So it finds torch's libraries by their place relative
    # to glake.
    beside = name != FAKE_CUDA or installed_torch().root == SOURCES.parents[1] / "torch"
    return ready if beside and _cxx11_abi() and ready.exists() else None


def _carried_name(name: str) -> str:
    """The name of a wheel's adapter: torch's version and commit, and a digest of the sources. It
    depends on no path."""
    torch = installed_torch()
    about = f"{torch.version} {torch.commit} {platform.machine()}".encode()
    key = hashlib.sha256(about + _sources()).hexdigest()[:16]
    return f"{name}-torch-{torch.version}-{key}.so"


def _cxx11_abi() -> bool:
    loaded = sys.modules.get("torch")
    return bool(loaded.compiled_with_cxx11_abi()) if loaded else True  # wheels have it since 2.7


def _command(name: str, torch_libraries: str = "") -> list[str]:
    torch = installed_torch()
    libraries = [f"-L{torch.root / 'lib'}", "-lc10"]
    if name == CUDA:
        libraries += ["-ltorch_cpu", *(["-lc10_cuda"] if torch.cuda else [])]
    if name == NUMBERS:
        libraries += ["-ltorch_cpu"]
    if name == FAKE_CUDA:  # it is loaded before torch, and must find torch's libraries itself
        libraries += ["-ltorch_cpu", f"-Wl,-rpath,{torch_libraries or torch.root / 'lib'}"]
    return [
        *_compiler(),
        *("-O2", "-shared", "-fvisibility=hidden"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(_cxx11_abi())}",
        *_flags(name, torch.root / "include", torch.version),
        str(SOURCES / "torch" / f"{name}.cpp"),
        *libraries,
    ]


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _flags(name: str, include: Path, version: str) -> list[str]:
    minor = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    flags = [f"-std=c++{20 if minor >= (2, 14) else 17}", "-fPIC", "-Wall", "-Wextra"]
    flags += [*(f"-I{folder}" for folder in (SOURCES, *INCLUDE)), "-isystem", str(include)]
    if name == CUDA:
        for directory in cuda_headers():
            flags += ["-isystem", str(directory)]
        if not (include / "c10/cuda/impl/cuda_cmake_macros.h").exists():  # a CPU build's headers
            flags.append("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE")
    return flags


def cuda_headers() -> list[Path]:
    """The directories of CUDA's headers: a toolkit's (CUDA_HOME, CUDA_PATH, /usr/local/cuda) or
    those of the nvidia-cuda-runtime and nvidia-cuda-crt wheels. Raises AdapterBuildError.
    """
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [Path(home, "include") for home in homes if home]
    for entry in sys.path:
        for pattern in ("cu*[0-9]", "cuda_runtime", "cuda_nvcc", "cuda_crt"):
            candidates += sorted(Path(entry or ".").glob(f"nvidia/{pattern}/include"), reverse=True)
    found = []
    for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
        home = next((each for each in candidates if (each / header).exists()), None)
        if home is None:
            raise AdapterBuildError(
                f"CUDA's header {header} was not found, which the torch adapter is compiled with: "
                "pip install nvidia-cuda-runtime nvidia-cuda-crt (headers, 3 MB), or set "
                "CUDA_HOME to a toolkit"
            )
        found.append(home)
    return list(dict.fromkeys(found))


def check_headers(include: Path) -> float:
    """Compiles the CUDA adapter against the headers of another torch, and keeps nothing.

    `include` is the folder that holds c10/ and ATen/. Returns the seconds taken. Raises
    AdapterBuildError.
    """
    given = include / "torch/headeronly/version.h"
    if not given.exists():
        raise AdapterBuildError(f"{given} does not exist: give the folder torch/include")
    words = [line.split() for line in given.read_text().splitlines()]
    numbers = {word[1]: word[2] for word in words if len(word) == 3 and word[0] == "#define"}
    version = ".".join(numbers[f"TORCH_VERSION_{part}"] for part in ("MAJOR", "MINOR", "PATCH"))
    source = str(SOURCES / "torch" / f"{CUDA}.cpp")
    start = time.monotonic()
    _run([*_compiler(), *_flags(CUDA, include, version), "-fsyntax-only", source])
    return time.monotonic() - start


def _key(command: list[str]) -> str:
    torch = installed_torch()
    digest = hashlib.sha256()
    about = [torch.version, torch.commit, platform.machine(), *command]
    digest.update("\0".join(about).encode() + _sources())
    return digest.hexdigest()[:20]


def _sources() -> bytes:
    """A digest of an adapter's sources, without the headers of torch and CUDA."""
    digest = hashlib.sha256()
    headers = (found for folder in (SOURCES / "base", *INCLUDE) for found in folder.rglob("*.h"))
    for source in (*sorted((SOURCES / "torch").rglob("*.*")), *sorted(headers)):
        digest.update(source.read_bytes())
    return digest.digest()


def _cache_directory() -> Path:
    """GLAKE_JIT_DIR, or else the user's cache. If the cache cannot be written (a read-only home),
    it is a folder among the temporary files. That folder is private to the user, because its files
    are executed."""
    given = config.read().jit_dir
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(given or Path(base, "glake")).expanduser()
    private = Path(tempfile.gettempdir(), f"glake-{os.getuid()}")
    try:
        return _writable(directory)
    except OSError as error:
        refused = error
    try:
        if given:
            raise refused
        return _own(_writable(private))
    except OSError as error:
        tried = "" if given else f", nor use {private}: {error.strerror}"
        raise AdapterBuildError(
            f"cannot write in {directory} for the compiled torch adapter: {refused.strerror}"
            f"{tried}; set GLAKE_JIT_DIR to a directory you may write"
        ) from error


def _writable(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return directory


def _own(directory: Path) -> Path:
    """Checks a folder in a place where all users may make files. Raises AdapterBuildError if it is
    another user's, or if others can write in it."""
    about = directory.lstat()
    mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    if not mine or about.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "it is not a folder of this user's alone")
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
    # It is written under another name and then renamed, so that a reader never sees half a library.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch, target.name)
        _run([*command, "-o", str(made)])
        made.replace(target)


def _what_is_carried() -> str:
    names = {path.name.split("-torch-")[1].rpartition("-")[0] for path in CARRIED.glob("*.so")}
    return f"This glake brings adapters of torch: {', '.join(sorted(names)) or 'none'}"


def _run(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        raise AdapterBuildError(
            f'no C++ compiler: "{command[0]}" is not on PATH, and glake compiles its torch adapter '
            "at first use; install g++ or name another in CXX. Where g++ is, `glake build-adapter` "
            f"compiles the CUDA one ahead of time. {_what_is_carried()}"
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AdapterBuildError(
            f"the torch adapter did not compile (exit status {done.returncode}):\n"
            f"{shlex.join(command)}\n{done.stderr[-4000:]}"
        )
