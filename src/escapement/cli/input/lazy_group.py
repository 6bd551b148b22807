"""A command group that imports only the command that is called.

Importing numpy, trio and the broker takes most of a command's start-up time. Packages that only
some commands need, such as Spark, need not be installed for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from escapement.interrupt import leaving_at_once

# For each command: the module that defines it under its own name, and its one-line help.
Table = Mapping[str, tuple[str, str]]

# The key under which click's context keeps the option --token-file for all commands.
TOKEN_FILE: Final = "escapement.token_file"
# The key of the option --reason.
REASON: Final = "escapement.reason"
_NO_NAMES: Final[Mapping[str, str]] = {}


class LazyGroup(click.Group):
    """A command group that imports a command when it is called.

    Args:
      table: the module and the help of each command.
      also: for each alias, the name of its command.
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
