"""torch_memory_saver's calls (SGLang, slime, verl) on glake's regions.

The package pauses memory that cudaMalloc gave. glake does not call cudaMalloc, so the package's
pause() would free nothing, without an error. Here glake's object replaces that of the package. It
needs no LD_PRELOAD, can pause the memory of graphs, and copies over every path. It raises a typed
error where the package would end the process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import glake
from glake import _C
from glake.allocator import torch as allocator
from glake.allocator.regions import outside, paused_pools
from glake.errors import GlakeError, InvalidArgument, NotOffered, RegionRefused
from glake.integrations import figures
from glake.integrations.replacing import replace, version_of

PACKAGE = "torch_memory_saver"
VERSIONS = ("0.0.9", "0.1")


@dataclass(frozen=True)
class _Kept:
    """The place of a tag's bytes while its memory is paused."""

    tag: str
    to: str  # "discard", "host" or "disk"

    @property
    def region(self) -> str:
        return f"torch_memory_saver {self.tag} ({self.to})"


def version() -> str:
    """The version of the package."""
    return version_of(PACKAGE, PACKAGE)


class MemorySaver:
    """The object for `torch_memory_saver.torch_memory_saver`, with the same calls and meaning.

    Errors are glake's: RegionRefused, OutOfMemory (all stays paused and intact), and those of
    glake.pause() and glake.resume().
    """

    enabled = True
    hook_mode = "glake"  # setting it to another value changes nothing

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._graphs: dict[tuple[int, tuple[int, int]], _Kept] = {}
        self._folder: str | None = os.environ.get("TMS_DISK_BACKUP_DIR")
        self._headroom: glake.Headroom | None = None

    @contextlib.contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """A context in which this thread's allocations have the tag.

        Args:
            tag: the tag, for pause() and resume().
            enable_cpu_backup: keep the bytes in pinned host memory while the tag is paused.
            enable_disk_backup: keep the bytes in a file (set_disk_backup_dir). With neither option
                they are dropped.
            cpu_backup_backend: "pinned" or None, which mean the same.
        """
        kept = self._keeping(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        with glake.region(kept.region):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Does what torch.cuda.graph does. The memory of the graph's pool has the tag.

        Either all of a graph's memory is kept, or nothing. If it is dropped, the graph must write
        memory before it reads it.
        """
        import torch

        kept = self._keeping(tag, enable_cpu_backup, False, cpu_backup_backend)
        with torch.cuda.graph(
            cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode
        ):
            yield
        first, second = cuda_graph.pool()
        self._graphs[torch.cuda.current_device(), (first, second)] = kept

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """A context in which allocations have no tag, even within a region."""
        with outside():
            yield

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of a tag, or of all, back to the driver.

        Bytes go to the place that the region named. If one part is refused, parts that were paused
        before it are resumed. If the tag has no memory, or all of it is paused, the call does
        nothing.
        """
        done: list[tuple[int, tuple[int, int]]] = []
        try:
            # Parts whose bytes are dropped go last, because these would be lost if another part was
            # refused.
            parts = sorted(self._parts(tag, "in use"), key=lambda part: part[2].to == "discard")
            for device, pool, kept in parts:
                folder = os.fspath(Path(self._disk()).resolve()) if kept.to == "disk" else ""
                before = _C.stats(device)["glake.paused_bytes"]
                try:
                    _C.region_pause(device, pool, _PLACES[kept.to], folder)
                except InvalidArgument:
                    # There is no such pool any more, because its graph has ended.
                    if self._graphs.pop((device, pool), None) is None:
                        raise
                    continue
                after = _C.stats(device)["glake.paused_bytes"]
                figures.add("memory_saver", "paused_bytes", after - before)
                done.append((device, pool))
        except GlakeError:
            for device, pool in reversed(done):
                _C.region_resume(device, pool, False)
            raise

    def resume(self, tag: str | None = None) -> None:
        """Takes memory again at the same addresses, with its bytes. Parts that do not fit stay
        paused."""
        for device, pool, _ in self._parts(tag, "paused"):
            _C.region_resume(device, pool, False)

    def set_disk_backup_dir(self, path: str) -> None:
        """Sets the folder for files of paused memory. It is made if it does not exist."""
        os.makedirs(path, exist_ok=True)
        self._folder = path

    @property
    def memory_margin_bytes(self) -> int:
        """The bytes of each GPU that are left free, as by glake.headroom()."""
        return self._headroom.bytes if self._headroom is not None else 0

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        self._headroom = glake.headroom(value)

    @property
    def retain_cpu_backup(self) -> bool:
        """False, because host memory is freed once its bytes are back. Setting it to True raises
        NotOffered."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        if value:
            raise NotOffered("glake keeps no host copy of memory that is back on the GPU")

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """Raises NotOffered, because paused memory can only be read after resume()."""
        raise NotOffered("glake hands out no bytes of a paused region: resume it, then copy them")

    def _keeping(self, tag: str, cpu: bool, disk: bool, backend: str | None) -> _Kept:
        if cpu and disk:
            raise InvalidArgument("enable_cpu_backup and enable_disk_backup: give one of them")
        if backend is not None and not cpu:
            raise InvalidArgument("cpu_backup_backend needs enable_cpu_backup=True")
        if backend not in (None, "pinned"):
            raise NotOffered(f"cpu_backup_backend {backend!r}: glake's is pinned memory")
        if disk:
            self._disk()
        kept = _Kept(tag, "host" if cpu else "disk" if disk else "discard")
        if kept not in self._kept:
            self._kept.append(kept)
        return kept

    def _disk(self) -> str:
        if self._folder is None:
            raise InvalidArgument(
                "enable_disk_backup needs a folder: set_disk_backup_dir(), or TMS_DISK_BACKUP_DIR"
            )
        return self._folder

    def _parts(self, tag: str | None, state: str) -> list[tuple[int, tuple[int, int], _Kept]]:
        """The regions and graph pools of the tag that are in `state`, by device."""
        meant = {kept.region: kept for kept in self._kept if tag is None or kept.tag == tag}
        parts = [
            (at.device, _C.region_pool(at.name), meant[at.name])
            for at in glake.regions()
            if at.name in meant and at.state == state and (at.reserved or at.paused)
        ]
        paused = paused_pools()
        for part, kept in self._graphs.items():
            if kept.region in meant and (part in paused) == (state == "paused"):
                parts.append((*part, kept))
        return parts


_PLACES = {"host": 1, "disk": 2, "discard": 3}
_REPLACED = ("torch_memory_saver", "configure_subprocess")
_undo: dict[MemorySaver, contextlib.ExitStack] = {}


def install() -> None:
    """Installs glake's object, and a configure_subprocess() that preloads nothing."""
    if allocator.mode() not in ("adapter", "emulation"):
        raise GlakeError(
            "integration memory_saver: glake is not PyTorch's allocator here; glake.enable() first"
        )
    package: Any = importlib.import_module(PACKAGE)
    if _undo:
        return
    if missing := [name for name in _REPLACED if not hasattr(package, name)]:
        raise GlakeError(f"integration memory_saver: {PACKAGE} has no {missing[0]}")
    with contextlib.ExitStack() as made:
        ours = MemorySaver()
        replace(made, package, "torch_memory_saver", ours)
        replace(made, package, "configure_subprocess", contextlib.nullcontext)
        _undo[ours] = made.pop_all()


def uninstall() -> None:
    """Restores the package's own object.

    Raises:
        RegionRefused: some memory is paused, and the package's own object could not resume it.
    """
    paused = [part for ours in list(_undo) for part in ours._parts(None, "paused")]
    if paused:
        tags = ", ".join(sorted({repr(kept.tag) for _, _, kept in paused}))
        raise RegionRefused(f"integration memory_saver: {tags} is paused; resume() it first")
    while _undo:
        _undo.popitem()[1].close()
