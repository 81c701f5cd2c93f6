"""All GPUs of the node, whichever of them CUDA_VISIBLE_DEVICES shows this process.

Processes may see different GPUs, or the same GPUs in another order. UUIDs identify GPUs, so that
all processes use the same name for the same link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from glake import config
from glake.errors import DriverAbsent
from glake.platforms import Edge, Joint, Platform
from glake.transfer.topology import sources
from glake.transfer.topology.nvml import Gpu, Nvml
from glake.transfer.topology.topology import Topology
from glake.transfer.topology.visible import visible

_HIDES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Node:
    """A node's topology with all of its GPUs. `seen` holds the node's numbers of the GPUs that this
    process sees, in this process's order."""

    topology: Topology
    seen: tuple[int, ...]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The node's number of each GPU, in this process's order: first the GPUs that it sees, then
        the others."""
        hidden = [gpu for gpu in range(self.topology.platform.gpus) if gpu not in self.seen]
        return (*self.seen, *hidden)

    @property
    def hides_some(self) -> bool:
        """Whether there are GPUs that this process does not see."""
        return len(self.seen) < self.topology.platform.gpus

    def renumbered(self) -> Topology:
        """The topology with this process's GPU numbers. Edges and limits keep their order."""
        devices = self.topology.devices
        if self.order == tuple(range(len(self.order))):
            return self.topology
        return replace(
            self.topology,
            platform=_renumbered(self.topology.platform, self.order),
            devices=tuple(devices[gpu] for gpu in self.order) if devices else (),
        )


def current(environ: Mapping[str, str] | None = None) -> Node:
    """The node of the driver in use. Raises InvalidDevice or InvalidOption, as sources.current()
    does."""
    environ = sources.in_force() if environ is None else environ
    everything = {name: value for name, value in environ.items() if name != _HIDES}
    topology = sources.current(everything)
    shown = visible(_gpus(topology, everything), environ, lambda _: None)
    if topology.source.startswith("simulated") and not config.read(environ).sim_visible_devices:
        shown = list(range(topology.platform.gpus))
    return Node(topology, tuple(shown))


def used_by_others(environ: Mapping[str, str], source: Nvml | None = None) -> dict[int, int]:
    """Finds the GPUs on which another process computes, and the id of one such process for each.

    Only GPUs that this process sees are examined. The keys are its own numbers of them. The result
    is empty if NVML does not tell. In a container with its own process ids, this process counts as
    another one on the GPUs that it uses itself.
    """
    try:
        gpus = (source or Nvml()).read().gpus
    except DriverAbsent:
        return {}
    found = {}
    for device, gpu in enumerate(visible(gpus, environ, lambda _: None)):
        others = [process for process in gpus[gpu].processes if process != os.getpid()]
        if others:
            found[device] = others[0]
    return found


def _gpus(topology: Topology, environ: Mapping[str, str]) -> list[Gpu]:
    if topology.source.startswith("simulated"):
        machine = config.read(environ).sim_machine
        uuids = (simulated_uuid(g, machine) for g in range(topology.platform.gpus))
        return [Gpu("simulated", "", uuid) for uuid in uuids]
    return list(Nvml().read().gpus)


def simulated_uuid(gpu: int, machine: str | None = None) -> str:
    """The UUID that the simulator gives this GPU (simcuda/driver/gpu_uuid.h)."""
    own = b"uda\0\0"
    if machine:
        digest = 0xCBF29CE484222325  # FNV-1a
        for each in machine.encode():
            digest = (digest ^ each) * 0x100000001B3 % (1 << 64)
        own = digest.to_bytes(8, "little")[:5]
    digits = (b"glake-simc" + own + bytes([gpu])).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def service_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that serves all processes of the node. It names the driver and
    hides no GPU. CUDA then numbers the GPUs as NVML does."""
    environ = {**os.environ, **(sources.in_force() if environ is None else environ)}
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("GLAKE_") or name == "GLAKE_DRIVER" or name.startswith("GLAKE_SIM_")
    }
    kept.pop(_HIDES, None)
    kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return kept


def _renumbered(platform: Platform, order: tuple[int, ...]) -> Platform:
    number = {gpu: at for at, gpu in enumerate(order)}

    def named(text: str) -> str:
        return re.sub(r"\bg(\d+)\b", lambda found: f"g{number[int(found[1])]}", text)

    return replace(
        platform,
        sockets=tuple(tuple(sorted(number[g] for g in gpus)) for gpus in platform.sockets),
        edges=tuple(
            Edge(named(each.source), named(each.target), each.gb_per_s) for each in platform.edges
        ),
        joint=tuple(
            Joint(tuple((named(edge), weight) for edge, weight in each.weights), each.gb_per_s)
            for each in platform.joint
        ),
    )
