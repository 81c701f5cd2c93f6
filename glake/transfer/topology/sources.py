"""Finds the capacity graph for plans: a preset's, a file's, the simulator's, or this machine's."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from glake import arguments, config
from glake.errors import InvalidOption, InvalidPlatform, WrongType
from glake.platform_file import load_platforms, preset_file, read_file
from glake.platforms import Platform
from glake.transfer.topology import calibration_cache
from glake.transfer.topology.topology import Topology

DEFAULT_PRESET = config.DEFAULT_PRESET


def from_preset(name: str) -> Topology:
    """A platform that is installed with glake.

    Args:
        name: its name.

    Raises:
        InvalidOption: there is no such preset. The text lists all presets.
        WrongType: `name` is no text.
    """
    return Topology(name, _chosen(load_platforms(), name, str(preset_file())), f"preset {name}")


def from_file(path: str | Path, name: str | None = None) -> Topology:
    """A platform of a file.

    Args:
        path: of the file (docs/topology.md, "Platforms file").
        name: the platform's name; None: the file has only one.

    Raises:
        InvalidPlatform: the file cannot be used, or has several platforms and none is named.
        InvalidOption: the file has no platform of that name.
        WrongType: `path` is no path, or `name` is no text.
    """
    platforms = read_file(Path(arguments.path("a platforms file", path)))
    if name is None:
        if len(platforms) > 1:
            raise InvalidPlatform(
                f"platforms file {path} has {len(platforms)} platforms: choose one with --name: "
                f"{', '.join(platforms)}"
            )
        name = next(iter(platforms))
    return Topology(name, _chosen(platforms, name, str(path)), f"file {path}")


def current(environ: Mapping[str, str] | None = None, calibrated: bool = True) -> Topology:
    """The topology of the driver in use: the simulator's platform, or the real machine.

    If this process has a driver open, it is that one, even if code chose it
    (glake.enable(driver=...)). Otherwise it is the one that GLAKE_DRIVER names.

    Args:
        environ: the environment whose GLAKE_DRIVER counts; None: as above.
        calibrated: with the rates that an earlier probe found, if there was one. Otherwise a real
            machine has estimates, and the simulator has its platform's rates.

    Raises:
        InvalidDevice: the machine has no GPU.
        InvalidOption: a variable's value cannot be used.
        UnknownOption: glake has no such GLAKE_* variable.
        WrongType: `environ` is no mapping of strings.
    """
    environ = in_force() if environ is None else environ
    options = config.read(environ)
    if options.driver == "sim" or options.driver.startswith("sim:"):
        return _measured(_simulated(options), calibrated)
    if Path(options.driver).name.startswith("libsimcuda.so"):
        return _measured(_simulated(options), calibrated)
    from glake.transfer.topology.discovery import discover

    found = discover(environ)
    described = zip(found.names, found.addresses, strict=True)
    devices = tuple(f"{name} {address}" for name, address in described)
    source = "this machine (NVML, /sys)"
    topology = Topology("this_machine", found.platform, source, devices, found.refused)
    return _measured(topology, calibrated)


def in_force() -> Mapping[str, str]:
    """The environment, where GLAKE_DRIVER names the driver that is open. Options given in code are
    not in the environment."""
    core = sys.modules.get("glake._C")  # if it is not loaded, no driver is open
    if core is not None and core.driver_path():
        chosen = {option["name"]: option["value"] for option in core.options()}
        if os.environ.get("GLAKE_DRIVER") != chosen["driver"]:
            return {**os.environ, "GLAKE_DRIVER": chosen["driver"]}
    return os.environ


def _measured(topology: Topology, calibrated: bool) -> Topology:
    found = calibration_cache.load(topology) if calibrated else None
    return topology if found is None else found.applied(topology)


def _simulated(options: config.Config) -> Topology:
    preset = options.driver.partition(":")[2] or options.sim_preset or DEFAULT_PRESET
    path = options.sim_platforms
    platforms = load_platforms(path)
    platform = _chosen(platforms, preset, path or str(preset_file()))
    source = f"simulated driver, platform {preset}"
    count = options.sim_devices
    if count is not None and count != platform.gpus:
        platform = first_gpus(platform, count, preset)
        source += f", its first {count} GPUs"
    topology = Topology(preset, platform, source)
    if options.sim_pcie_peers == "socket":
        return topology
    return replace(topology, refused=_refused(topology, options.sim_pcie_peers))


def _refused(topology: Topology, allowed: str) -> tuple[tuple[int, int], ...]:
    """The pairs without NVLink to which the simulated driver gives no peer access
    (GLAKE_SIM_PCIE_PEERS)."""
    from glake._C import CapacityGraph  # only here, so that presets need no core

    graph = CapacityGraph(topology.text(), topology.name)
    return tuple(
        (a, b)
        for b in range(graph.gpus)
        for a in range(b)
        if not graph.linked(a, b) and (allowed == "none" or not graph.same_switch(a, b))
    )


def _chosen(platforms: Mapping[str, Platform], name: str, where: str) -> Platform:
    if arguments.text("a platform's name", name) not in platforms:
        raise InvalidOption(
            f"no platform {name!r} in {where}: there are {', '.join(platforms)}{_file_hint(name)}"
        )
    return platforms[name]


def _file_hint(name: str) -> str:
    if "/" not in name and not name.endswith(".json"):
        return ""
    return (
        "; a platform of your own is GLAKE_SIM_PLATFORMS=FILE with GLAKE_DRIVER=sim:NAME, its name "
        "in that file"
    )


def first_gpus(platform: Platform, count: int, name: str = "the platform") -> Platform:
    """The platform with only its first GPUs. The whole host stays.

    Args:
        platform: a Topology's platform.
        count: how many GPUs stay.
        name: what an error calls the platform.

    Raises:
        InvalidOption: the platform has fewer.
        WrongType: `platform` is no platform, or `count` is no whole number.
    """
    if not isinstance(platform, Platform):
        raise WrongType(f"platform is a Platform, as load_platforms() gives it, not {platform!r}")
    count = arguments.count("count", count)
    if not 1 <= count <= platform.gpus:
        raise InvalidOption(
            f"{name} has {platform.gpus} GPUs, {count} were asked for: take 1 to {platform.gpus}"
        )

    def kept(node: str) -> bool:
        return node[0] != "g" or int(node[1:]) < count

    edges = tuple(edge for edge in platform.edges if kept(edge.source) and kept(edge.target))
    names = {edge.name for edge in edges}
    # A joint limit loses the terms of edges that are gone, because nothing flows over these.
    joint = tuple(
        replace(each, weights=tuple(pair for pair in each.weights if pair[0] in names))
        for each in platform.joint
    )
    return replace(
        platform,
        gpus=count,
        sockets=tuple(tuple(gpu for gpu in gpus if gpu < count) for gpus in platform.sockets),
        edges=edges,
        joint=tuple(each for each in joint if each.weights),
    )
