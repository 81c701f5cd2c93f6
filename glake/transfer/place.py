"""The ends of a copy by name: "cuda:3" or "gpu3" for a GPU, "cpu:1" for host memory of a socket,
"cpu" for host memory of all sockets."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from glake import arguments
from glake._C import CapacityGraph
from glake.errors import InvalidArgument, InvalidDevice
from glake.platforms import Platform, file_text
from glake.transfer import topology as topologies
from glake.transfer.topology import Topology
from glake.typing import CopyEnd

# The places of host memory for which no socket is named. It is on the GPU's own socket; or on all
# sockets, where the socket changes every few MiB (so that each chunk has one socket); or on all
# sockets, where the socket changes every page.
HOSTS = ("local", "interleaved", "pages")
_SPREAD, _STRIPED = -1, -2  # as in csrc/plan/plan.h

PlatformLike = str | os.PathLike[str] | Topology | Platform | None


@dataclass(frozen=True)
class Place:
    """GPU `gpu`. If `gpu` is None, host memory of socket `node`. If `node` is None too, host memory
    of all sockets, by `pages` or by chunks."""

    gpu: int | None = None
    node: int | None = None
    pages: bool = False

    @property
    def name(self) -> str:
        """The name that messages show, however the place was given."""
        if self.gpu is not None:
            return f"cuda:{self.gpu}"
        return "cpu" if self.node is None else f"cpu:{self.node}"

    @property
    def code(self) -> tuple[int, int]:
        """The planner's numbers for the place."""
        if self.gpu is not None:
            return self.gpu, 0
        if self.node is not None:
            return -1, self.node
        return -1, _SPREAD if self.pages else _STRIPED

    def nodes(self, sockets: int) -> list[str]:
        """The place's nodes in the capacity graph."""
        if self.gpu is not None:
            return [f"g{self.gpu}"]
        return [f"m{s}" for s in (range(sockets) if self.node is None else [self.node])]


def topology_of(platform: PlatformLike) -> Topology:
    """The topology that a preset's name, a platforms file or a Topology gives. None: that of
    GLAKE_DRIVER.

    Raises InvalidOption (for a file InvalidPlatform) if there is no such preset or file, and
    InvalidArgument for any other value.
    """
    if not isinstance(platform, str | os.PathLike | Topology | Platform | None):
        raise InvalidArgument(
            f"platform {platform!r}: take a preset's name, a platforms file, a Topology or None"
        )
    if platform is None:
        return topologies.current()
    if isinstance(platform, Topology):
        return platform
    if isinstance(platform, Platform):
        return Topology("platform", platform, "given")
    if isinstance(platform, os.PathLike) or Path(platform).suffix == ".json":
        return topologies.from_file(Path(platform))
    return topologies.from_preset(platform)


def graph_of(platform: PlatformLike | CapacityGraph) -> CapacityGraph:
    """The capacity graph of a platform. A graph is returned as it is."""
    if isinstance(platform, CapacityGraph):
        return platform
    topology = topology_of(platform)
    graph = CapacityGraph(file_text({topology.name: topology.platform}), topology.name)
    for a, b in topology.refused:
        if not graph.linked(a, b):  # NVLinks that the platform has are usable
            graph.refuse_peers(a, b)
    return graph


def ends(graph: CapacityGraph, src: CopyEnd, dst: CopyEnd, host: str) -> tuple[Place, Place]:
    """Both ends of a copy. At least one must be a GPU.

    Raises InvalidDevice or InvalidArgument for anything else, and says what is taken.
    """
    if host not in HOSTS:
        raise InvalidArgument(f"host={host!r}: take one of {', '.join(HOSTS)}")
    a, b = _parse(graph, src, host), _parse(graph, dst, host)
    if a.gpu is None and b.gpu is None:
        raise InvalidArgument(f"from {src} to {dst}: one end must be a GPU, such as cuda:0")
    if a == b:
        raise InvalidArgument(
            f"from {src} to {dst}: both ends are {a.name}, so that no link is crossed and nothing "
            "bounds the copy; name another GPU, cpu or cpu:SOCKET at one end"
        )
    if host == "local":
        gpu = a.gpu if a.gpu is not None else b.gpu
        assert gpu is not None
        a, b = (_near(graph, place, gpu) for place in (a, b))
    return a, b


def place_name(graph: CapacityGraph, place: CopyEnd) -> str:
    """The name by which messages show an end that ends() takes: "gpu3" becomes cuda:3."""
    return _parse(graph, place, "interleaved").name


def _near(graph: CapacityGraph, place: Place, gpu: int) -> Place:
    if place.gpu is not None or place.node is not None:
        return place
    return Place(node=graph.socket_of(gpu))


def _parse(graph: CapacityGraph, place: CopyEnd, host: str) -> Place:
    if hasattr(place, "__dlpack__") or isinstance(place, bytearray | memoryview):
        raise InvalidArgument(
            f"a {type(place).__name__} is no place: explain() takes names such as cpu or "
            "cuda:0 (copy() takes arrays)"
        )
    gpu = arguments.whole(place)
    named = str(place) if gpu is None else f"cuda:{gpu}"
    found = re.fullmatch(r"(?:(cpu|cuda)(?::(\d{1,6}))?|gpu:?(\d{1,6}))", named)
    if found is None:
        raise InvalidArgument(
            f"{place!r} is no place: take a GPU's number, cuda:GPU, cpu or cpu:SOCKET"
        )
    if found[3] is not None:
        return _parse(graph, f"cuda:{found[3]}", host)
    number = None if found[2] is None else int(found[2])
    if found[1] == "cuda":
        if (number or 0) >= graph.gpus:
            raise InvalidDevice(f"{place}: the platform has {graph.gpus} GPUs, from cuda:0")
        return Place(gpu=number or 0)
    if number is not None and number >= graph.sockets:
        raise InvalidDevice(f"{place}: the platform has {graph.sockets} sockets, from cpu:0")
    return Place(node=number, pages=host == "pages")
