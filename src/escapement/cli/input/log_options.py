"""The options of the log on stderr, of all commands that run until they are stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from escapement.cli.output.log_format import FORMATS, LEVELS

Command = TypeVar("Command", bound=Callable[..., Any])


def log_options(kind: type[click.Option] = click.Option) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--log-level`` and ``--log-format``.

    Args:
      kind: the class of the options.
    """
    level = click.option(
        "--log-level",
        cls=kind,
        type=click.Choice(LEVELS, case_sensitive=False),
        default="info",
        envvar="ESCAPEMENT_LOG_LEVEL",
        show_default=True,
        show_envvar=True,
        help="Lowest level of messages to log on stderr.",
    )
    form = click.option(
        "--log-format",
        cls=kind,
        type=click.Choice(FORMATS),
        default="lines",
        envvar="ESCAPEMENT_LOG_FORMAT",
        show_default=True,
        show_envvar=True,
        help="Form of the log on stderr: lines for people, or a JSON object for each event.",
    )
    return lambda command: level(form(command))
