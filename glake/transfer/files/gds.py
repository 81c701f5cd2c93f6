"""GPUDirect Storage by kvikio. It moves pieces between a file and GPU memory without pinned
buffers.

Not seen on hardware.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import Any

from glake import extras
from glake.errors import DriverAbsent, GlakeError, PackageMissing
from glake.transfer.array_memory import HOST, Raw
from glake.transfer.engine import default_engine


class Gds:
    """kvikio, in a mode that moves bytes between file and GPU directly.

    Raises:
        PackageMissing: kvikio is not installed, or cannot be imported.
        DriverAbsent: kvikio is in its compatibility mode, because cuFile or its file system driver
            is missing, or because KVIKIO_COMPAT_MODE asks for that mode.
    """

    def __init__(self) -> None:
        try:
            defaults = importlib.import_module("kvikio.defaults")
            self._files = importlib.import_module("kvikio.cufile")
        except ImportError as error:
            raise PackageMissing(
                extras.missing("FileEngine(gds=True)", "kvikio", "gds", error)
            ) from None
        if defaults.is_compat_mode_preferred():
            raise DriverAbsent(
                "no GPUDirect Storage here: kvikio is in its compatibility mode, in which it reads "
                "into host memory; leave gds=True out, or see KVIKIO_COMPAT_MODE in its pages"
            )

    def open(self, name: str, write: bool) -> GdsFile | None:
        """Opens the file for cuFile. None if its file system or its permissions do not allow
        that."""
        try:
            # kvikio's mode "w" would cut the file short. It also reads a part of a file that it
            # writes.
            return GdsFile(self._files.CuFile(name, "r+" if write else "r"))
        except (OSError, RuntimeError):  # RuntimeError is what kvikio makes of cuFile's errors
            return None


class GdsFile:
    """A file of one request, registered with cuFile."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._ordered = False
        self._lock = threading.Lock()

    def move(self, gpu: Raw, offset: int, stream: Any, write: bool) -> bool:
        """Reads or writes a piece. Returns whether all of it went this way. If not, the caller
        moves the whole piece through buffers. Bytes that are then written twice are the same.
        Raises GlakeError if the wait for the stream fails."""
        self._order(gpu, stream)
        memory = _Memory(gpu)
        move = self._file.pwrite if write else self._file.pread
        with contextlib.suppress(OSError, RuntimeError):
            return bool(move(memory, gpu.bytes, offset, gpu.bytes).get() == gpu.bytes)
        return False

    def close(self) -> None:
        """Deregisters and closes the file."""
        self._file.close()

    def _order(self, gpu: Raw, stream: Any) -> None:
        """Waits once for the stream's work before the request, because cuFile knows no streams."""
        with self._lock:
            if self._ordered:
                return
            if stream is not None:
                byte = bytearray(1)
                default_engine().copy(byte, Raw(gpu.address, 1, gpu.device), stream).wait()
            self._ordered = True


class _Memory:
    """GPU memory as kvikio takes it."""

    def __init__(self, gpu: Raw) -> None:
        if gpu.device == HOST:
            raise GlakeError("cuFile moves GPU memory alone")
        self.__cuda_array_interface__ = {
            "shape": (gpu.bytes,),
            "typestr": "|u1",
            "data": (gpu.address, False),
            "strides": None,
            "version": 3,
        }
