"""The command `escapement`: its subcommands, and how each of them ends.

    0    it did what was asked (for `serve`: it was told to stop, and stopped)
    1    it could not: one line on stderr says why
    2    the command line cannot be meant
    130  it was interrupted

Errors of ours are for people, so they are one line without a traceback. Any other error
is a mistake of ours: it keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from copy import copy
from typing import Final, NoReturn

import click

from escapement.bench.command import bench
from escapement.broker.crash import one_error
from escapement.cli.admin import admin
from escapement.cli.consume import consume
from escapement.cli.demo import demo
from escapement.cli.peek import peek
from escapement.cli.produce import produce
from escapement.cli.serve import serve
from escapement.errors import EscapementError

INTERRUPTED: Final = 130  # as shells count: 128 + SIGINT


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has its own --help, with examples.",
)
@click.version_option(package_name="escapement")
def escapement() -> None:
    """A message broker that delivers each message when it is due.

    \b
    Start one, send a message that is due in three seconds, and wait for it:
      escapement serve --data ./escapement-data &
      escapement admin subscriptions create orders billing
      escapement produce orders "pay me" --delay 3s
      escapement consume orders billing --count 1
    """


# The word that applications use goes too.
send = copy(produce)
send.hidden = True
escapement.add_command(send, "send")
for command in (demo, serve, produce, consume, peek, admin, bench):
    escapement.add_command(command)


def main() -> NoReturn:
    """The entry point: carry out the process's command line, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line; returns the exit code."""
    try:
        with one_error():
            code = escapement.main(arguments, prog_name="escapement", standalone_mode=False)
            return code if isinstance(code, int) else 0
    except EscapementError as error:
        click.echo(f"escapement: {error}", err=True)
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough. What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
