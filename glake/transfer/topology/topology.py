"""A machine's topology, and its source."""

from __future__ import annotations

from dataclasses import dataclass

from glake import arguments
from glake.errors import InvalidDevice, WrongType
from glake.platforms import Platform, file_text


@dataclass(frozen=True)
class Topology:
    """A named platform, and its source.

    Args:
        name: the platform's name.
        platform: its GPUs, sockets, edges and limits.
        source: the platform's origin, in words.
        devices: descriptions of the GPUs, if they are known.
        refused: pairs of GPUs to which the driver gives no peer access, the lower number first.
            Others under one socket are taken for peers.

    Raises:
        WrongType: a value of another type.
        InvalidDevice: a pair of `refused` names a GPU that the platform does not have.
    """

    name: str
    platform: Platform
    source: str
    devices: tuple[str, ...] = ()
    refused: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Raises as the class says."""
        arguments.text("name", self.name)
        arguments.text("source", self.source)
        arguments.text_list("devices", self.devices)
        if not isinstance(self.platform, Platform):
            raise WrongType(f"platform is a Platform, not {arguments.type_name(self.platform)}")
        for pair in self.refused:
            if not isinstance(pair, tuple) or len(pair) != 2 or None in map(arguments.whole, pair):
                raise WrongType(f"refused has pairs of GPUs' numbers, not {pair!r}")
            if not 0 <= pair[0] < pair[1] < self.platform.gpus:
                raise InvalidDevice(
                    f"refused: no pair of GPUs {pair}: the platform has {self.platform.gpus}"
                )

    def text(self) -> str:
        """A platforms file of this one platform. `from_file` and the C interface can read it."""
        return file_text({self.name: self.platform})
