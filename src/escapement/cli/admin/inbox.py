"""`escapement admin inbox`: entries of the inbox.

An entry is a batch of messages in the database that the broker has yet to move to the log of its
topic.
"""

from __future__ import annotations

from typing import Final

import click

from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.output.table import print_record, print_rows

_INBOX_COLUMNS: Final = (
    "target",
    "entries",
    "messages",
    "size_bytes",
    "oldest_at_ms",
    "stuck",
    "reason",
)


@click.group()
def inbox() -> None:
    """Manage the inbox: stored messages that the broker has yet to move to their topics."""


@verb(inbox, "list")
def list_inbox(admin: AdminCommand) -> None:
    """Show the inbox entries by topic, and why they wait.

    Stuck entries can never be moved. All others are moved as soon as their reason to wait ends.
    """
    admin.ask("inbox.list", lambda rows: print_rows(rows, _INBOX_COLUMNS, "no inbox entries"))


@verb(inbox, "discard", "shop/eu/orders")
@click.argument("target", metavar="TOPIC")
def discard_entries(admin: AdminCommand, target: str) -> None:
    """Delete all inbox entries of a topic."""
    admin.ask("inbox.discard", print_record, target=target)
