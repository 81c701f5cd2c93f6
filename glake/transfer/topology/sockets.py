"""Finds the socket of each GPU and NUMA node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glake.transfer.topology.nvml import NvmlFacts
from glake.transfer.topology.sysfs import NumaNode, Sysfs

_ONE_NODE = 40  # NVML's levels up to this one mean the same NUMA node


@dataclass(frozen=True)
class Sockets:
    """The GPUs and NUMA nodes of each socket. Sockets without GPUs are included for their
    memory."""

    gpus: tuple[tuple[int, ...], ...]
    numa_nodes: tuple[tuple[int, ...], ...]


def find(
    facts: NvmlFacts,
    chains: Sequence[tuple[str, ...]],
    sysfs: Sysfs,
    note: Callable[[str], None],
) -> Sockets:
    """The sockets, numbered by their lowest NUMA node. Notes say what was assumed."""
    nodes = sysfs.numa_nodes()
    if not nodes:
        note("/sys shows no NUMA nodes")
    groups = _packages(nodes, note)
    of_node = {node: index for index, group in enumerate(groups) for node in group}
    told = [
        of_node.get(node) if node is not None else None
        for node in (sysfs.numa_node(gpu.address) for gpu in facts.gpus)
    ]
    if groups and len(groups) == 1:
        told = [0] * len(told)
    elif not groups:
        groups = _by_level(facts, note)
        told = [
            next(i for i, group in enumerate(groups) if gpu in group) for gpu in range(len(told))
        ]
        return _made([*groups], told, numa_nodes=())
    unknown = [gpu for gpu, socket in enumerate(told) if socket is None]
    if unknown:
        placed = _guess(told, [chain[0] for chain in chains], len(groups))
        names = ", ".join(f"cuda:{gpu} to {placed[gpu]}" for gpu in unknown)
        note(
            f"the firmware names no NUMA node for some GPUs: by their neighbours, socket of {names}"
        )
        told = list(placed)
    for socket in range(len(groups)):
        if socket not in told:
            note(f"socket {socket} has memory and no GPU")
    return _made(groups, told, tuple(tuple(group) for group in groups))


def _made(
    groups: Sequence[Sequence[int]],
    told: Sequence[int | None],
    numa_nodes: tuple[tuple[int, ...], ...],
) -> Sockets:
    gpus = [tuple(g for g, socket in enumerate(told) if socket == s) for s in range(len(groups))]
    return Sockets(tuple(gpus), numa_nodes)


def _packages(nodes: Sequence[NumaNode], note: Callable[[str], None]) -> list[list[int]]:
    """The NUMA nodes of each processor package that has memory.

    Nodes without cores (a GPU's own memory, CXL) are no sockets. A package may have several nodes.
    """
    for node in nodes:
        if not node.has_cores and node.memory_bytes:
            note(f"NUMA node {node.number} has no cores (GPU memory or CXL): left out")
    with_cores = [node for node in nodes if node.has_cores]
    if not with_cores:
        return []
    if len(with_cores) > 1 and any(node.package is None for node in with_cores):
        note("/sys shows no processor packages: each NUMA node is taken for a socket")
        keys = [node.number for node in with_cores]
    else:
        keys = [node.package or 0 for node in with_cores]
    groups: dict[int, list[NumaNode]] = {}
    for key, node in zip(keys, with_cores, strict=True):
        groups.setdefault(key, []).append(node)
    kept = [group for group in groups.values() if any(node.memory_bytes for node in group)]
    for group in groups.values():
        numbers = [node.number for node in group]
        if len(numbers) > 1:
            note(f"NUMA nodes {', '.join(map(str, numbers))} are one socket")
        if kept and group not in kept:
            near = min(kept, key=lambda other: group[0].distances.get(other[0].number, 99))
            near.extend(group)
            note(f"NUMA node {numbers[0]} has no memory: counted with node {near[0].number}")
    return sorted(sorted(node.number for node in group) for group in kept or groups.values())


def _by_level(facts: NvmlFacts, note: Callable[[str], None]) -> list[list[int]]:
    """The GPUs of each socket, by NVML's common ancestors alone."""
    groups: list[list[int]] = []
    for gpu in range(len(facts.gpus)):
        for group in groups:
            if facts.ancestor.get((gpu, group[0]), 0) <= _ONE_NODE:
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    note(f"{len(groups)} socket(s) taken from what NVML says of pairs of GPUs")
    return groups


def _guess(told: Sequence[int | None], roots: Sequence[str], sockets: int) -> list[int]:
    """Finds a socket for a GPU that tells nothing: the socket of others on its root bus. If there
    are none, spreads the GPUs over sockets in PCI order."""
    known = {root: socket for root, socket in zip(roots, told, strict=True) if socket is not None}
    return [
        socket if socket is not None else known.get(root, index * sockets // len(told))
        for index, (root, socket) in enumerate(zip(roots, told, strict=True))
    ]
