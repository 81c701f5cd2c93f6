"""Gives memory that nobody uses back to the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glake import _C
from glake.arguments import device_number

if TYPE_CHECKING:
    from glake.typing import Device


def empty_cache(device: Device = 0) -> None:
    """Gives all of a GPU's idle memory back to the driver, for other programs.

    It waits for the GPU's work, and unmaps what is idle. Later requests take memory anew, which
    costs driver time. PyTorch programs have the same in torch.cuda.empty_cache().

    Args:
        device: 0, "cuda:0" or a torch.device.

    Raises:
        MemoryOwed: the driver refuses to take some of it back. It serves later requests.
        InvalidDevice: no such device.
        DriverAbsent: there is no driver.
        DriverError: the driver refused to wait for its work.
    """
    _C.empty_cache(device_number(device))


def empty_host_cache() -> None:
    """Gives all idle pinned host memory back to the system.

    Memory whose copies are not known to be done stays.

    Raises:
        DriverError: the driver refuses to take some of it back.
    """
    _C.host_empty_cache()
