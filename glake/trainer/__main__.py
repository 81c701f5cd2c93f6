"""`python -m glake.trainer`, and `torchrun --nproc-per-node N -m glake.trainer`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from glake import extras
from glake.errors import GlakeError, InvalidOption


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    help="A model of the zoo (--list), an experiment's TOML file, or a folder with a checkpoint "
    "of transformers' (Llama) to begin with.",
)
@click.option("--data", help="A file or folder of text: data.path.")
@click.option("--steps", type=int, help="How many steps: steps.")
@click.option("--folder", help="Where checkpoints and the log go: checkpoint.folder.")
@click.option("--export", help="Where to write the model for transformers: export.")
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE",
    help="One option, such as model.block.attention.heads=8. May be repeated.",
)  # fmt: skip
@click.option("--print-config", is_flag=True, help="Print the experiment as TOML, and end.")
@click.option("--list", "list_", is_flag=True, help="Print the models of the zoo, and end.")
def main(print_config: bool, list_: bool, **given: Any) -> None:
    """Train a decoder-only transformer on local text. docs/trainer.md tells all options."""
    if not extras.present("torch"):
        raise click.ClickException(f"the trainer needs PyTorch: {extras.TORCH}")
    try:
        if list_:
            _list()
            return
        experiment = configured(**given)
        if print_config:
            click.echo(str(experiment), nl=False)
            click.echo("\n# Options that are not set; --set PATH=none unsets one:")
            for path, kind in experiment.unset():
                click.echo(f"# {path} = {kind}")
            return
        from glake.trainer.loop import Interrupted, train

        try:
            train(experiment)
        except Interrupted:  # rank 0 has said so
            sys.exit(130)
    except KeyboardInterrupt:
        print("trainer: interrupted", file=sys.stderr, flush=True)
        sys.exit(130)
    except GlakeError as error:
        rank = os.environ.get("RANK")
        where = "" if rank is None else f"rank {rank}: "
        print(f"trainer: {where}{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def configured(
    config: str | None,
    data: str | None,
    steps: int | None,
    folder: str | None,
    changes: tuple[str, ...],
    export: str | None = None,
) -> Any:
    """The experiment that the command line describes. Raises InvalidOption or UnknownOption."""
    if config is None:
        raise InvalidOption("--config says what to train: a model of the zoo (--list), or a file")
    try:
        made = _read(config)
    except OSError as error:
        raise InvalidOption(f"--config {config:.80}: {error.strerror}") from None
    given = {"data.path": data, "steps": steps, "checkpoint.folder": folder, "export": export}
    for path, value in given.items():
        if value is not None:
            made.set(path, value)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path.strip():
            raise InvalidOption(f"--set {change}: write it as PATH=VALUE")
        # The value is taken with its white space, because a separator may consist of it. "PATH =
        # VALUE" is accepted as well.
        made.set_text(path.strip(), text if path == path.strip() else text.strip())
    return made


def _read(config: str) -> Any:
    """The experiment that --config names. Raises OSError if the file cannot be read."""
    from glake.trainer.loop import Experiment
    from glake.trainer.models import huggingface, sizes

    path = Path(config)
    if config in sizes.ZOO:
        return Experiment.Config(model=sizes.model(config))
    if path.suffix == ".toml":
        return Experiment.Config.load(path)
    if (path / "config.json").is_file():
        return Experiment.Config(model=huggingface.read_config(config), weights=config)
    if path.suffix or path.exists():
        raise InvalidOption(
            f"--config {config}: an experiment is a TOML file, and named *.toml; a checkpoint of "
            "transformers' is a folder with config.json"
        )
    return Experiment.Config(model=sizes.model(config))  # raises an error that lists the models


def _list() -> None:
    import torch

    from glake.trainer.models.sizes import ZOO

    for name, make in ZOO.items():
        with torch.device("meta"):
            count = sum(each.numel() for each in make().build().parameters())
        click.echo(f"{name:14} {count / 1e6:>9,.1f} M parameters")


if __name__ == "__main__":
    main(prog_name="python -m glake.trainer")
