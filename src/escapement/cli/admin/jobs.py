"""`escapement admin jobs`: bulk writes on their way into topics."""

from __future__ import annotations

from typing import Final

import click

from escapement.cli.admin.group import Desk, verb
from escapement.cli.table import print_rows

_JOB_COLUMNS: Final = (
    "job",
    "version",
    "state",
    "messages",
    "adopted",
    "size_bytes",
    "held",
    "reason",
    "staged_at_ms",
    "committed_at_ms",
    "adopted_at_ms",
)


@click.group()
def jobs() -> None:
    """Jobs: what was written in bulk, and how much of it has come to its topics."""


@verb(jobs, "list")
def list_jobs(desk: Desk) -> None:
    """Show bulk writes, the newest first, and what they wait for.

    What is being staged is nobody's yet; it is given up when the write is aborted, or left alone
    for 3 days. Nobody can know whether it will still be committed, but `staged at` says when the
    last of it came. What is committed goes into the topics by itself: `adopted` says how much has,
    `held` how many letters never can.
    """
    desk.ask("jobs.list", lambda rows: print_rows(rows, _JOB_COLUMNS, "no jobs"))
