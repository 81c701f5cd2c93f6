"""Groups of subcommands, listed with whole sentences."""

from __future__ import annotations

import click

_WHOLE = 1000  # characters: no first sentence is longer


class Group(click.Group):
    """A group whose help wraps what its commands do; click's own cuts it off."""

    def help_rows(self, ctx: click.Context) -> list[tuple[str, str]]:
        """(name, what it does) of each command."""
        return [(name, each.get_short_help_str(_WHOLE)) for name, each in self.commands.items()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What `--help` lists; click calls it."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.help_rows(ctx)))
