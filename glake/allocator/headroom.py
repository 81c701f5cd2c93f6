"""Headroom: GPU memory that glake leaves to others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from glake import _C
from glake.arguments import count, device_number, size

if TYPE_CHECKING:
    from glake.typing import Device

_ALL = -1


_lock = threading.Lock()
_entered: list[Headroom] = []  # those whose `with` goes on, in the order of their beginning


class Headroom:
    """The result of glake.headroom(). As a context manager it restores the former headroom at its
    end.

    Contexts of several threads or tasks may overlap. Then the last one that began counts, as long
    as it is open. When all have ended, the headroom is the one from before the first.

    Attributes:
        bytes: the bytes that glake leaves free from then on.
        free_bytes: the free bytes by the driver's report, once idle memory was given back. It is
            the least of the devices in use, or 0 if no device was in use. It is less than `bytes`
            if other programs hold the rest.
    """

    def __init__(self, nbytes: int, device: int) -> None:
        nbytes, device = size("a headroom", nbytes), count("device", device)
        self.bytes = nbytes
        self._device = device
        with _lock:
            self._set()

    def _set(self) -> None:
        devices = range(_C.device_count()) if self._device == _ALL else [self._device]
        self._before = {each: _C.headroom(each) for each in devices}
        if self._device == _ALL:
            self._before[_ALL] = _C.headroom(_ALL)  # of devices that are used later
        self.free_bytes = _C.set_headroom(self._device, self.bytes)

    def __enter__(self) -> Headroom:
        with _lock:
            # The end of another context may have changed it since it was set.
            if any(_C.headroom(each) != self.bytes for each in self._before):
                self._set()
            _entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Sets the former headroom again. Where a context counts that began later and is still
        open, its end does so instead."""
        with _lock:
            later: list[Headroom] = []
            if self in _entered:
                later = _entered[_entered.index(self) + 1 :]
                _entered.remove(self)
            wanted = {}
            for device, before in self._before.items():
                heir = next((each for each in later if device in each._before), None)
                if heir is not None:
                    heir._before[device] = before
                wanted[device] = before if heir is None else _C.headroom(device)
            if _ALL in wanted and wanted[_ALL] != _C.headroom(_ALL):
                _C.set_headroom(_ALL, wanted[_ALL])  # sets every device's
            for device, nbytes in wanted.items():
                if nbytes != _C.headroom(device):
                    _C.set_headroom(device, nbytes)


def headroom(nbytes: int | str, device: Device | None = None) -> Headroom:
    """Leaves that much of a GPU's memory free, for NCCL, cuBLAS, graph capture or other processes.

    From now on glake takes no memory from the driver if less would be left free. It stitches the
    memory that it holds, and runs out of memory if that is not enough. The call gives idle memory
    back, until that much is free or nothing is idle. After others have taken memory, the same call
    gives back more. Memory of glake's live blocks stays, and so does memory of others.

    `with glake.headroom("4GiB"):` restores the former headroom at its end. The option `headroom`
    (GLAKE_HEADROOM) sets it from the start.

    Args:
        nbytes: bytes, or text such as "4GiB"; 0: none.
        device: 0, "cuda:0" or a torch.device; None: all devices, also those used later.

    Raises:
        InvalidArgument: no size, or the device has no more memory than that. Nothing has changed.
        InvalidDevice: no such device.
        MemoryOwed: the headroom is set, but the driver refuses to take idle memory back.
        DriverError: the driver does not say how much is free.
        DriverAbsent: there is no driver.
    """
    number = _ALL if device is None else device_number(device)
    return Headroom(size("a headroom", nbytes), number)
