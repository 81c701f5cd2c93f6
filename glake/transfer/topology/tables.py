"""Shows a topology as text: a matrix of GPUs and host memory, shared uplinks, limits,
assumptions."""

import re
from collections.abc import Iterator, Mapping

from rich.box import HEAVY_HEAD, SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glake.platforms import Joint, Platform, for_people
from glake.transfer.topology.calibration import MEASURED
from glake.transfer.topology.rates import ESTIMATE
from glake.transfer.topology.routes import Routes, parents
from glake.transfer.topology.topology import Topology

_SHORT = {"same switch": "switch", "same socket": "socket", "across sockets": "across"}
_SHORTER = {
    "NVLink": "NVL",
    "NVSwitch": "NVS",
    "switch": "sw",
    "socket": "sock",
    "across": "far",
    "not joined": "-",
    "remote": "rem",
    "local": "loc",
}


def show(topology: Topology, console: Console) -> None:
    """Prints everything that `glake topo` says about one topology."""
    platform = topology.platform
    count = f"{platform.gpus} GPU{'s' * (platform.gpus != 1)}"
    sockets = f"{len(platform.sockets)} socket{'s' * (len(platform.sockets) != 1)}"
    console.print(
        f"[bold]{escape(topology.name)}[/bold]: {count}, {sockets}; {escape(topology.source)}"
    )
    for number, device in enumerate(topology.devices):
        console.print(f"  cuda:{number}  {escape(device)}", highlight=False)
    console.print(f"Rates: {known(platform)}", highlight=False)
    narrow = console.width < width(platform)
    console.print(matrix(platform, narrow))
    console.print(
        "GB/s (1e9 bytes/s) of one plain copy alone, from the row to the column; cuda:0 "
        "is a GPU, cpu:0 the memory of a CPU socket, cpu:0/pcie its PCIe root, u0 a PCIe switch.\n"
        + ("NVL: NVLink, NVS: NVSwitch" if narrow else "NVLink, NVSwitch")
        + "; over PCIe: under one switch, under one socket, across sockets.",
        style="dim",
        highlight=False,
    )
    for title, lines in (
        ("Shared uplinks", uplinks(platform)),
        ("Limits over several links", limits(platform)),
        ("Assumed", iter(platform.assumed)),
    ):
        rows = list(lines)
        console.print(f"\n[bold]{title}[/bold]" + ("" if rows else ": none"))
        for row in rows:
            console.print(f"  {escape(row)}", highlight=False, soft_wrap=True)


def known(platform: Platform) -> str:
    """The origin of the rates: a probe and its date, an estimate, or a user."""
    for note in platform.assumed:
        if note.startswith(f"rates {MEASURED}"):
            return note.removeprefix("rates ") + "; exceptions under Assumed"
    if any(note.startswith(ESTIMATE) for note in platform.assumed):
        return "estimates, not measured; `glake topo --probe` measures them"
    return "nominal, as the platform gives them; not measured"


def width(platform: Platform) -> int:
    """The number of columns that the matrix needs."""
    return 10 + 11 * platform.gpus + 9 * len(platform.sockets)


def matrix(platform: Platform, narrow: bool = False) -> Table:
    """A row for each GPU and socket's memory, and a column for each. The diagonal is empty."""
    routes = Routes(platform)
    gpus = [f"g{index}" for index in range(platform.gpus)]
    hosts = [f"m{index}" for index in range(len(platform.sockets))]
    named = [for_people(node) for node in (*gpus, *hosts)]
    table = Table("", *named, box=SIMPLE if narrow else HEAVY_HEAD, padding=(0, not narrow))
    for row in (*gpus, *hosts):
        if row == hosts[0]:
            table.add_section()
        cells = [_cell(platform, routes, row, column, narrow) for column in (*gpus, *hosts)]
        table.add_row(for_people(row), *cells)
    return table


def _cell(platform: Platform, routes: Routes, row: str, column: str, narrow: bool) -> str:
    if row == column or row[0] == column[0] == "m":
        return ""
    if row[0] == column[0]:
        way = routes.way(int(row[1:]), int(column[1:])).value
        kind = _SHORT.get(way, way)
    else:
        gpu, host = (row, column) if row[0] == "g" else (column, row)
        kind = "local" if platform.socket_of(int(gpu[1:])) == int(host[1:]) else "remote"
    shown = _SHORTER.get(kind, kind) if narrow else kind
    return f"{shown}\n{routes.rate(row, column):g}"


def uplinks(platform: Platform) -> Iterator[str]:
    """A line for each PCIe switch: the rate of its link to the host, and the GPUs that share it."""
    above = parents(platform)
    for switch in sorted((n for n in above if n[0] == "u"), key=lambda node: int(node[1:])):
        root = above[switch]
        gpus = [n for n in above if n[0] == "g" and switch in _ancestors(n, above)]
        sharers = for_people(" ".join(gpus)) or "no GPU"
        down, up = platform.rate(root, switch) or 0, platform.rate(switch, root) or 0
        yield (
            f"{switch} under {for_people(root)}: {down:g} towards {sharers}, {up:g} back; "
            "together, not each"
        )


def _ancestors(node: str, above: Mapping[str, str]) -> set[str]:
    found: set[str] = set()
    while (node := above.get(node, "")) and node not in found:
        found.add(node)
    return found


def limits(platform: Platform) -> Iterator[str]:
    """The joint limits. Limits that differ only in the numbers of their nodes share a line."""
    alike: dict[str, list[Joint]] = {}
    for joint in platform.joint:
        alike.setdefault(re.sub(r"\d+(?=>|\Z|\s)|(?<=[msug])\d+", "#", _limit(joint)), []).append(
            joint
        )
    for group in alike.values():
        more = f"; {len(group) - 1} more of the kind" if len(group) > 1 else ""
        yield f"{for_people(_limit(group[0]))}{more}"


def _limit(joint: Joint) -> str:
    terms = [name if weight == 1 else f"{weight:g} x {name}" for name, weight in joint.weights]
    return f"{' + '.join(terms)} <= {joint.gb_per_s:g}"


def presets(platforms: Mapping[str, Platform]) -> Table:
    """The table of `glake topo --list`."""
    table = Table("platform", "GPUs", "sockets", "between GPUs", "host link GB/s", "shared uplinks")
    for name, platform in platforms.items():
        routes = Routes(platform)
        pairs = [(a, b) for a in range(platform.gpus) for b in range(platform.gpus) if a != b]
        ways = {routes.way(*pair) for pair in pairs}
        best = min(ways, key=list(type(next(iter(ways)))).index).value if ways else "-"
        own = routes.rate(f"m{platform.socket_of(0)}", "g0")
        table.add_row(
            name, str(platform.gpus), str(len(platform.sockets)), best, f"{own:g}",
            str(sum(1 for _ in uplinks(platform))),
        )  # fmt: skip
    return table
