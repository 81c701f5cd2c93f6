"""Headroom: GPU memory that glake leaves to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glake import _C
from glake.arguments import count, device_number, size

if TYPE_CHECKING:
    from glake.typing import Device

_ALL = -1


class Headroom:
    """The result of glake.headroom(). As a context manager it restores the former headroom at its
    end.

    Attributes:
        bytes: the bytes that glake leaves free from then on.
        free_bytes: the free bytes by the driver's report, once idle memory was given back. It is
            the least of the devices in use, or 0 if no device was in use. It is less than `bytes`
            if other programs hold the rest.
    """

    def __init__(self, nbytes: int, device: int) -> None:
        nbytes, device = size("a headroom", nbytes), count("device", device)
        devices = range(_C.device_count()) if device == _ALL else [device]
        self.bytes = nbytes
        self._device = device
        self._before = {each: _C.headroom(each) for each in devices}
        self._default = _C.headroom(_ALL)
        self.free_bytes = _C.set_headroom(device, nbytes)

    def __enter__(self) -> Headroom:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Sets the former headroom again."""
        if self._device == _ALL:
            _C.set_headroom(_ALL, self._default)
        for device, before in self._before.items():
            if before != _C.headroom(device):
                _C.set_headroom(device, before)


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
