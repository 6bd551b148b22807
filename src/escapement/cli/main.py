"""The command `escapement`: its subcommands, and how each of them ends.

    0    it did what was asked (for `serve`: it was told to stop, and stopped)
    1    it could not: one line on stderr says why
    2    the command line cannot be meant
    130  it was interrupted

Errors of ours are for people, so they are one line without a traceback. Any other error
is a mistake of ours: it keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from escapement.cli.lazygroup import LazyGroup
from escapement.errors import EscapementError
from escapement.interrupt import INTERRUPTED, leaving_at_once

# What we print to may be full: no mistake of ours.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_COMMANDS: Final = {
    "admin": ("escapement.cli.admin", "Look after what a running broker keeps."),
    "bench": ("escapement.bench.command", "Measure what this machine does, over TCP."),
    "cancel": ("escapement.cli.amend", "Cancel messages that are not handed out yet."),
    "consume": ("escapement.cli.consume", "Print messages as they come due."),
    "demo": ("escapement.cli.demo", "See messages arrive on time though the broker is killed."),
    "dlq": ("escapement.cli.dlq", "Look after messages that were tried too often."),
    "forecast": ("escapement.cli.forecast", "Show how many messages fall due when."),
    "message": ("escapement.cli.message", "Look at a message, and at what became of it."),
    "pause": ("escapement.cli.pause", "Hand nothing out of a topic, or to a subscription."),
    "peek": ("escapement.cli.peek", "Show what is pending on a topic, next due first."),
    "pipeline": ("escapement.cli.pipeline", "Run a job on the log itself, beside the broker."),
    "produce": ("escapement.cli.produce", "Send messages, now or for later."),
    "read": ("escapement.cli.read", "Print a topic's messages by offset, without consuming."),
    "resume": ("escapement.cli.pause", "Hand out again what was paused."),
    "schedule": ("escapement.cli.schedule", "Publish again and again, by cron or every so often."),
    "reschedule": ("escapement.cli.amend", "Give messages not handed out yet another time."),
    "run-now": ("escapement.cli.amend", "Have messages not handed out yet due now."),
    "serve": ("escapement.cli.serve", "Run a broker until SIGTERM or Ctrl-C."),
}
# The word that applications use goes too.
_ALSO: Final = {"send": "produce"}


class _Commands(LazyGroup):
    """Those, with one error where several tasks of a command failed."""

    def invoke(self, ctx: click.Context) -> Any:
        with leaving_at_once():
            from escapement.broker.crash import one_error  # it needs trio, as every command does

        with one_error():
            return super().invoke(ctx)


@click.group(
    cls=_Commands,
    table=_COMMANDS,
    also=_ALSO,
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


def main() -> NoReturn:
    """The entry point: carry out the process's command line, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line; returns the exit code."""
    try:
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
    except OSError as error:
        if error.errno not in _FULL:
            raise
        click.echo(f"escapement: {error}", err=True)
        return 1
