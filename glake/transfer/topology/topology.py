"""A machine's topology, with where it is known from."""

from __future__ import annotations

from dataclasses import dataclass

from glake.platforms import Platform, file_text


@dataclass(frozen=True)
class Topology:
    """A named platform, and where it is from.

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
        """A platforms file of this one platform: `from_file` and the C interface read it back."""
        return file_text({self.name: self.platform})
