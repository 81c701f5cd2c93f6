"""`glake build-adapter`: the CUDA adapter compiled ahead of its first use."""

from __future__ import annotations

import time
from pathlib import Path

import click

from glake.allocator import adapter, adapter_build
from glake.errors import GlakeError


@click.command()
@click.option(
    "--torch-headers",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Only compile against the headers in DIR (another torch/include); build nothing.",
)
@click.option("--check", is_flag=True, help="Load it too, as enabling glake does.")
def build_adapter(torch_headers: Path | None, check: bool) -> None:
    """Compile the CUDA adapter for the installed torch, and print where it is kept.

    Without this it is compiled when glake is first enabled. g++ and CUDA's headers are enough.
    """
    if torch_headers is not None:
        seconds = adapter_build.check_headers(torch_headers)
        click.echo(f"compiles against {torch_headers} ({seconds:.1f} s)")
        return
    start = time.monotonic()
    path = adapter_build.build(adapter_build.CUDA)
    click.echo(f"{path} ({time.monotonic() - start:.1f} s)")
    if not check:
        return
    import torch

    if torch.version.cuda is None:
        raise GlakeError(
            f"this PyTorch ({torch.__version__}) has no CUDA, so the adapter cannot be loaded: "
            "install a CUDA build of PyTorch"
        )
    built_for = adapter.library().glake_adapter_torch().decode()
    if built_for != torch.__version__.split("+")[0]:
        raise GlakeError(f"{path} was built for torch {built_for}, not {torch.__version__}")
    click.echo(f"loads into torch {torch.__version__}")
