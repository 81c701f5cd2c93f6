"""Prints the table `bounds` of a topology preset, to be put into simcuda/platforms.json.

    preset_bounds.py FILE [NAME]

FILE is a platforms file (docs/topology.md). NAME is its platform, if it has several. A row has
rates in GB/s: the bound, the rates of plain copies and of equal shares, and for several copies the
rate of each if all get the same. The bounds come from glake's own solver, so compare them with
published figures.
"""

from __future__ import annotations

import json
import sys

import click

from glake import transfer
from glake.platform_file import load_platforms
from glake.platforms import Platform
from glake.transfer import baselines
from glake.transfer.bench.cases import Case, cases
from glake.transfer.place import graph_of
from glake.transfer.topology.routes import Routes

HOSTS = {"local": "local", "interleaved": "inter"}


def name_of(case: Case, routes: Routes) -> str | None:
    """The row's name, as the tests read it. None: the table has no row for this case."""
    kind, _, which = case.transfer.partition(":")
    if kind == "p2p":
        a, b = which.split(">")
        return f"p2p {which} ({routes.way(int(a), int(b)).value})"
    if which.startswith("pair"):
        pair = which.partition(":")[2] or "0,1"
        a, b = pair.split(",")
        together = case.host == "interleaved"
        return f"two h2d {routes.way(int(a), int(b)).value} ({pair})" if together else None
    if kind == "bidir":
        return f"bidir h2d+d2h{' local' if case.host == 'local' else ''}"
    return f"{kind.replace('-', ' ')} {HOSTS[case.host]}"


def row_of(platform: Platform, case: Case) -> dict[str, float]:
    """The figures of one row, GB/s."""
    graph = graph_of(platform)
    found: dict[str, float] = {}
    if len(case.copies) == 1:
        src, dst = case.copies[0]
        found["bound"] = transfer.bound(graph, dst=dst, src=src, host=case.host)
    else:
        copies = [transfer.Ends(dst=dst, src=src) for src, dst in case.copies]
        joint = transfer.joint_bound(graph, copies, host=case.host)
        found["bound"], found["fair_each"] = joint.total, joint.fair
    found["plain"] = baselines.plain(graph, case.copies, host=case.host)
    found["equal_shares"] = baselines.equal_shares(graph, case.copies, host=case.host)
    return {key: round(found[key], 2)
            for key in ("bound", "plain", "equal_shares", "fair_each") if key in found}  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file")
@click.argument("name", required=False)
def main(file: str, name: str | None) -> None:
    """Prints the table `bounds` of the platform NAME in FILE."""
    platforms = load_platforms(file)
    if name is None and len(platforms) == 1:
        name = next(iter(platforms))
    if name not in platforms:
        raise click.UsageError(f"name one of the file's platforms: {', '.join(platforms)}")
    platform, rows = platforms[name], []
    for case in cases(platform):
        if title := name_of(case, Routes(platform)):
            rows.append(f"   {json.dumps(title)}: {json.dumps(row_of(platform, case))}")
    sys.stdout.write('  "bounds": {\n' + ",\n".join(rows) + "\n  }\n")


if __name__ == "__main__":
    main()
