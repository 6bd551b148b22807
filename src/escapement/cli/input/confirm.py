"""The question before a command that cannot be undone."""

from __future__ import annotations

import click


def confirm(question: str) -> None:
    """Ask on the terminal whether to go on. The command must have the option --yes.

    Raises:
      Abort: if the answer is no, or the command is interrupted.
      UsageError: if the input ends without an answer.
    """
    try:
        click.confirm(question, abort=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            click.echo()
            raise click.UsageError("There is nobody to answer. To go on, add --yes.") from None
        raise
