"""`escapement admin broker`: the broker itself."""

from __future__ import annotations

import click

from escapement.broker.config import MOST_PARALLELISM
from escapement.cli.admin.group import Desk, verb
from escapement.cli.table import print_record


@click.group()
def broker() -> None:
    """The broker itself."""


@verb(broker, "stats", "", "-o json")
def broker_stats(desk: Desk) -> None:
    """Show the broker's figures: its database, its index, what waits for commit."""
    desk.ask("broker.stats", print_record)


@verb(broker, "update", "--table-parallelism 8")
@click.option(
    "--table-parallelism",
    type=click.IntRange(1, MOST_PARALLELISM),
    required=True,
    help="Tables of the log: it goes on at once in a new generation of so many.",
)
def update_broker(desk: Desk, table_parallelism: int) -> None:
    """Change how the broker keeps its log, while it runs.

    Nothing is moved: what is there stays where it is, and offsets go on. It outlives a
    restart, unless that names another number.
    """
    desk.ask("broker.update", print_record, table_parallelism=table_parallelism)
