"""`glake topo`: what joins the GPUs and the host, how fast, and how that is known."""

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console

from glake.errors import GlakeError
from glake.platforms import load_platforms
from glake.transfer import topology as topologies
from glake.transfer.topology.sources import Topology

_TABLE_WIDTH = 118


class BadInput(click.ClickException):
    """An option, file or machine that gives no topology."""

    exit_code = 2


@click.command()
@click.option("--preset", metavar="NAME", help="A platform installed with glake.")
@click.option("--file", "path", metavar="FILE", help="A platforms file (docs/topology.md).")
@click.option("--name", help="The platform of the file, if it has several.")
@click.option("--list", "as_list", is_flag=True, help="List the presets, or those of --file.")
@click.option("--json", "as_json", is_flag=True, help="Print a platforms file, nothing else.")
@click.option("--picture", metavar="FILE", help="Draw it into FILE.png or FILE.svg.")
@click.option("--probe", is_flag=True, help="Measure the rates with copies, and keep them.")
def topo(
    preset: str | None,
    path: str | None,
    name: str | None,
    as_list: bool,
    as_json: bool,
    picture: str | None,
    probe: bool,
) -> None:
    """Show how GPUs and host memory are joined: this machine's, or a described one's.

    Without --preset and --file it is what GLAKE_DRIVER names: the machine, or the simulator's.
    """
    try:
        _refuse_odd(preset, path, name, as_list, picture, probe)
        if as_list:
            _list(path, as_json)
            return
        shown = _chosen(preset, path, name, probe)
        if picture is not None:
            from glake.transfer.topology.picture import draw

            draw(shown, Path(picture))
    except (GlakeError, OSError) as error:
        raise BadInput(" ".join(str(error).split("\n"))) from error
    if as_json:
        click.echo(shown.text(), nl=False)
    else:
        _print(shown)


def _refuse_odd(
    preset: str | None,
    path: str | None,
    name: str | None,
    as_list: bool,
    picture: str | None,
    probe: bool,
) -> None:
    if preset is not None and path is not None:
        raise BadInput("--preset and --file: give one of them")
    if name is not None and path is None:
        raise BadInput("--name chooses a platform of --file; a preset is --preset NAME")
    if as_list and (preset or name or picture or probe):
        raise BadInput("--list goes with --file and --json only")
    if probe and (preset or path):
        raise BadInput("--probe measures the machine GLAKE_DRIVER names, not a described one")
    if picture is None:
        return
    if Path(picture).suffix.lower() not in (".png", ".svg"):
        raise BadInput(f"--picture {picture}: give a name that ends in .png or .svg")
    if path is not None and os.path.exists(picture) and os.path.samefile(picture, path):
        raise BadInput(f"--picture {picture} is the input")


def _chosen(preset: str | None, path: str | None, name: str | None, probe: bool) -> Topology:
    if preset is not None:
        return topologies.from_preset(preset)
    if path is not None:
        return topologies.from_file(path, name)
    if probe:
        from glake.transfer.topology.probe import measure

        # A simulated machine copies in no time if it need not move bytes, which nobody looks at.
        os.environ.setdefault("GLAKE_SIM_PHANTOM", "1")
        return measure()
    return topologies.current()


def _list(path: str | None, as_json: bool) -> None:
    from glake.transfer.topology.view import presets

    platforms = load_platforms(path)
    if as_json:
        click.echo(json.dumps(list(platforms)))
    else:
        _console(0).print(presets(platforms))


def _print(shown: Topology) -> None:
    from glake.transfer.topology.view import show, width

    show(shown, _console(width(shown.platform)))


def _console(columns: int) -> Console:
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = max(_TABLE_WIDTH, columns)
    return console
