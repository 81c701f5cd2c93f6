"""What all commands share: groups whose help shows whole sentences, and what ends a command."""

from __future__ import annotations

import errno

import click

_WHOLE = 1000  # characters: no first sentence is longer
# Errors of a write to an open file: its disk is full or broken, or nobody reads the pipe.
_OF_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


class Group(click.Group):
    """A group whose help wraps the commands' descriptions. click's own cuts them off."""

    def help_rows(self, ctx: click.Context) -> list[tuple[str, str]]:
        """(name, description) of each command."""
        return [(name, each.get_short_help_str(_WHOLE)) for name, each in self.commands.items()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands for `--help`. click calls it."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.help_rows(ctx)))


def of_output(error: Exception) -> bool:
    """Whether a command's output could not be written. Errors of files have the file's name:
    files.write_whole() sees to that."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _OF_WRITES


class BadInput(click.ClickException):
    """An option, file or machine that a command cannot use. Its exit status is 2, as of usage
    errors."""

    exit_code = 2
