"""Commands run where no package has metadata (argument: a page to write)."""

import importlib.metadata
import sys


def absent(name):
    raise importlib.metadata.PackageNotFoundError(name)


importlib.metadata.version = importlib.metadata.distribution = absent
from click.testing import CliRunner  # noqa: E402

from glake.cli import main  # noqa: E402

for command in ("--version", "info --json", f"replay sample --html {sys.argv[1]} --policy native"):
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 0, (command, done.output, done.exception)
    print(done.output)
