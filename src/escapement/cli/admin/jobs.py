"""`escapement admin jobs`: bulk jobs, which write many messages to topics without the broker."""

from __future__ import annotations

from typing import Final

import click

from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.output.table import print_rows

_JOB_COLUMNS: Final = (
    "job",
    "version",
    "state",
    "messages",
    "adopted",
    "size_bytes",
    "stuck",
    "reason",
    "staged_at_ms",
    "committed_at_ms",
    "adopted_at_ms",
)


@click.group()
def jobs() -> None:
    """Show bulk jobs, and how many of their messages are in their topics."""


@verb(jobs, "list")
def list_jobs(admin: AdminCommand) -> None:
    """Show bulk jobs, the newest first, and why their messages wait.

    Messages of an uncommitted job are only staged. They are deleted when the job is aborted, or
    when it has staged nothing for 3 days: `staged at` is the time of its last batch. Messages
    of a committed job are moved into their topics in the background: `adopted` is the number of
    messages moved so far, `stuck` the number of inbox entries that can never be moved.
    """
    admin.ask("jobs.list", lambda rows: print_rows(rows, _JOB_COLUMNS, "no jobs"))
