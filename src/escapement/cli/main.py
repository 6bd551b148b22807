"""The command `escapement`: its subcommands and its exit codes.

    0    success; for `serve`, the broker has stopped on request
    1    failure: one line on stderr says why
    2    invalid command line
    3    `pipeline audit` has found something that does not add up
    130  interrupted

An ``EscapementError`` is printed as one line without a traceback. Any other exception is a bug
and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from escapement.cli.input.lazy_group import REASON, TOKEN_FILE, LazyGroup
from escapement.cli.input.tls_files import keep
from escapement.cli.output.redaction import shows_password
from escapement.errors import EscapementError
from escapement.interrupt import INTERRUPTED, leaving_at_once

# Errors of a full output device. They are printed as one line, because they are not a bug.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# For each command: the module that defines it, and its one-line help.
_COMMANDS: Final = {
    "admin": ("escapement.cli.admin", "Manage namespaces, topics and subscriptions."),
    "backup": ("escapement.cli.operation.backup", "Take a snapshot of a log in SQLite."),
    "bench": ("escapement.bench.command", "Measure a broker on this machine, over TCP."),
    "cancel": ("escapement.cli.amend", "Cancel messages before they are delivered."),
    "check": (
        "escapement.cli.operation.check",
        "Check the log, the cursors and the index of a broker, and mend its index.",
    ),
    "config": ("escapement.cli.operation.config", "Show and check the settings of a broker."),
    "consume": ("escapement.cli.consume", "Print messages as they come due."),
    "demo": (
        "escapement.cli.demo.demo",
        "Watch messages arrive on time although the broker is killed.",
    ),
    "dlq": ("escapement.cli.dlq", "List, find, redrive and purge dead letters."),
    "doctor": (
        "escapement.cli.operation.doctor",
        "Check the machine, the data directory and the databases of a broker.",
    ),
    "forecast": ("escapement.cli.forecast", "Show how many messages fall due in each hour or day."),
    "console": (
        "escapement.cli.operation.console",
        "Serve web pages that show and change what is scheduled.",
    ),
    "gateway": (
        "escapement.cli.operation.gateway",
        "Serve messages over HTTP, for programs in any language.",
    ),
    "mcp": ("escapement.cli.operation.mcp", "Give an agent tools for messages, over MCP."),
    "message": ("escapement.cli.message", "Show a message and its history."),
    "migrate": (
        "escapement.cli.operation.migrate",
        "Create or upgrade the tables of a broker in MySQL, with another user.",
    ),
    "outbox": ("escapement.cli.outbox", "Serve tables of an application as outboxes."),
    "pause": ("escapement.cli.pause", "Pause the deliveries of a topic or a subscription."),
    "peek": ("escapement.cli.peek", "Show the pending messages of a topic, next due first."),
    "pipeline": ("escapement.cli.pipeline", "Run a job directly on the log."),
    "produce": ("escapement.cli.produce", "Publish messages, now or for later."),
    "push": (
        "escapement.cli.operation.push",
        "Post messages to HTTPS endpoints, as signed webhooks.",
    ),
    "read": ("escapement.cli.read", "Print a topic's messages by offset, without consuming them."),
    "restore": ("escapement.cli.operation.backup", "Restore a snapshot of a log in SQLite."),
    "resume": ("escapement.cli.pause", "Resume paused deliveries."),
    "schedule": (
        "escapement.cli.schedule",
        "Publish messages repeatedly, by cron or at an interval.",
    ),
    "reschedule": ("escapement.cli.amend", "Change the due time of messages not yet delivered."),
    "run-now": ("escapement.cli.amend", "Make messages not yet delivered due now."),
    "sql": (
        "escapement.cli.sql",
        "Send messages in an application's own transactions; query messages.",
    ),
    "serve": ("escapement.cli.operation.serve", "Run a broker until SIGTERM or Ctrl-C."),
    "stream": ("escapement.cli.stream", "Print the rows of a message table as they come due."),
    "tables": ("escapement.cli.tables", "Check and create message tables, and acknowledge rows."),
}
VISIBLE: Final = (
    "Warning: every user of this machine can see the password on the command line. Put the URL into"
    " the environment variable that --help names, or put the password into a variable or a file."
)
# Aliases of commands. In the client library, `produce` is called ``send``.
_ALSO: Final = {"send": "produce"}


class _Commands(LazyGroup):
    """The group of all commands. If several tasks of a command fail, it reports one error."""

    def invoke(self, ctx: click.Context) -> Any:
        with leaving_at_once():
            from escapement.broker.crash import one_error  # imports trio, which every command needs

        with one_error():
            return super().invoke(ctx)


@click.group(
    cls=_Commands,
    table=_COMMANDS,
    also=_ALSO,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has its own --help, with examples.",
)
@click.option(
    "--ca-file",
    envvar="ESCAPEMENT_CA_FILE",
    show_envvar=True,
    metavar="FILE",
    help="With escapements://: authorities to trust, instead of those of the system.",
)
@click.option(
    "--cert-file",
    envvar="ESCAPEMENT_CERT_FILE",
    show_envvar=True,
    metavar="FILE",
    help="With escapements://: certificate of this client.",
)
@click.option(
    "--key-file",
    envvar="ESCAPEMENT_KEY_FILE",
    show_envvar=True,
    metavar="FILE",
    help="With escapements://: key of this certificate.",
)
@click.version_option(package_name="escapement")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    help="File with the token for the broker.  [default: $ESCAPEMENT_TOKEN_FILE]",
)
@click.option(
    "--reason",
    envvar="ESCAPEMENT_REASON",
    show_envvar=True,
    metavar="TEXT",
    default="",
    help="Why you change something, such as 'ticket 4711'; the audit log shows it.",
)
@click.pass_context
def escapement(
    context: click.Context, /, token_file: str | None, reason: str, **files: str | None
) -> None:
    """A message broker that delivers each message when it is due.

    \b
    Start one, send a message that is due in three seconds, and wait for it:
      escapement serve --data ./escapement-data &
      escapement admin subscriptions create orders billing
      escapement produce orders "pay me" --delay 3s
      escapement consume orders billing --count 1

    A broker with access control requires a token: in the variable ESCAPEMENT_TOKEN or in a file.
    """
    context.meta[TOKEN_FILE] = token_file
    context.meta[REASON] = reason
    keep(context, files)


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return the exit code."""
    if shows_password(arguments):
        click.echo(VISIBLE, err=True)
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
        # The program that reads the output has exited. Discard the buffered output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _FULL:
            raise
        click.echo(f"escapement: {error}", err=True)
        return 1
