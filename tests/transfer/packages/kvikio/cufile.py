"""The file of the stand-in. It notes its requests in `asked`, and fails as `failing` says."""

import ctypes
import os
from typing import Any

asked: list[tuple[str, int, int]] = []
opened: list["CuFile"] = []
failing: dict[str, int] = {}  # by call: how many of its next calls fail


def _fails(what: str) -> bool:
    failing[what] = failing.get(what, 0) - 1
    return failing[what] >= 0


class IOFuture:
    __slots__ = "_handle"

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def get(self) -> int:
        return self._handle()


class CuFile:
    def __init__(self, file: Any, flags: str = "r") -> None:
        if _fails("open"):
            raise RuntimeError("KvikIO failure: cuFile error, handle not supported")
        self.closed = False
        self._file = os.open(file, {"r": os.O_RDONLY, "r+": os.O_RDWR}[flags])
        opened.append(self)

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        os.close(self._file)

    def pread(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        return IOFuture(lambda: self._move("read", buf, size, file_offset))

    def pwrite(
        self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        return IOFuture(lambda: self._move("write", buf, size, file_offset))

    def _move(self, way: str, buf: Any, size: int | None, offset: int) -> int:
        facts = buf.__cuda_array_interface__
        assert facts["version"] == 3 and facts["typestr"] == "|u1" and facts["strides"] is None
        assert size is not None and facts["shape"] == (size,) and not self.closed
        address = facts["data"][0]
        asked.append((way, offset, size))
        if _fails(way):
            raise RuntimeError("KvikIO failure: cuFile error, GPU memory not supported")
        if _fails(f"short {way}"):
            size //= 2
        memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        call = os.preadv if way == "read" else os.pwritev
        return call(self._file, [memory], offset)
