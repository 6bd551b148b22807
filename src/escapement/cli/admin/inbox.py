"""`escapement admin inbox`: what waits to be moved into topics."""

from __future__ import annotations

from typing import Final

import click

from escapement.cli.admin.group import Desk, verb
from escapement.cli.table import print_record, print_rows

_INBOX_COLUMNS: Final = (
    "target",
    "letters",
    "messages",
    "size_bytes",
    "oldest_at_ms",
    "held",
    "reason",
)


@click.group()
def inbox() -> None:
    """Letters: what waits to be moved into topics without a connection."""


@verb(inbox, "list")
def list_inbox(desk: Desk) -> None:
    """Show what waits in the inbox, by topic, and why.

    Letters that are held can never be moved; all others go on by themselves once there is
    no reason to wait.
    """
    desk.ask("inbox.list", lambda rows: print_rows(rows, _INBOX_COLUMNS, "no letters"))


@verb(inbox, "discard", "shop/eu/orders")
@click.argument("target", metavar="TOPIC")
def discard_letters(desk: Desk, target: str) -> None:
    """Delete all letters that wait for a topic."""
    desk.ask("inbox.discard", print_record, target=target)
