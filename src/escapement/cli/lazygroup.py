"""A group of commands, of which only the one that is called is imported.

Most of a command's start is imports: numpy, trio, the whole broker. And what one command needs
(Spark) need not be there for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from escapement.interrupt import leaving_at_once

# Of each command the module that has it, under the command's name, and its one line.
Table = Mapping[str, tuple[str, str]]

_NO_NAMES: Final[Mapping[str, str]] = {}


class LazyGroup(click.Group):
    """See the module's docstring.

    Args:
      table: the commands.
      also: other names of some.
    """

    def __init__(
        self, *args: Any, table: Table, also: Mapping[str, str] = _NO_NAMES, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._also = also

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self._also.get(cmd_name, cmd_name)
        if name not in self._table:
            return None
        module, _ = self._table[name]
        with leaving_at_once():
            command: click.Command = getattr(import_module(module), name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._table.items()])
