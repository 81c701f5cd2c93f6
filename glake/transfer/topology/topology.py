"""A machine's topology, and its source."""

from __future__ import annotations

from dataclasses import dataclass

from glake import arguments
from glake.errors import WrongType
from glake.platforms import Platform, file_text


@dataclass(frozen=True)
class Topology:
    """A named platform, and its source.

    Args:
        name: the platform's name.
        platform: its GPUs, sockets, edges and limits.
        source: the platform's origin, in words.
        devices: descriptions of the GPUs, if they are known.

    Raises:
        WrongType: a value of another type.
    """

    name: str
    platform: Platform
    source: str
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises as the class says."""
        arguments.text("name", self.name)
        arguments.text("source", self.source)
        arguments.text_list("devices", self.devices)
        if not isinstance(self.platform, Platform):
            raise WrongType(f"platform is a Platform, not {arguments.type_name(self.platform)}")

    def text(self) -> str:
        """A platforms file of this one platform. `from_file` and the C interface can read it."""
        return file_text({self.name: self.platform})
