"""A machine's topology, and its source."""

from __future__ import annotations

from dataclasses import dataclass

from glake.platforms import Platform, file_text


@dataclass(frozen=True)
class Topology:
    """A named platform, and its source.

    Args:
        name: the platform's.
        platform: its GPUs, sockets, edges and limits.
        source: where it is from, in words.
        devices: describes each GPU, where that is known.
    """

    name: str
    platform: Platform
    source: str
    devices: tuple[str, ...] = ()

    def text(self) -> str:
        """A platforms file of this one platform. `from_file` and the C interface can read it."""
        return file_text({self.name: self.platform})
