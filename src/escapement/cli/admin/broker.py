"""`escapement admin broker`: figures and settings of the broker itself."""

from __future__ import annotations

from typing import Any

import click

from escapement.broker.config import MOST_PARALLELISM
from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.output.table import print_record, print_rows


@click.group()
def broker() -> None:
    """Show or change the broker itself."""


@verb(broker, "stats", "", "-o json")
def broker_stats(admin: AdminCommand) -> None:
    """Show figures of the broker: its database, its index, and pending commits."""
    admin.ask("broker.stats", print_record)


@verb(broker, "findings", "", "-o json")
def broker_findings(admin: AdminCommand) -> None:
    """Show what is wrong with the machine, the data directory and the databases of a broker.

    The broker checks itself, as `escapement doctor` does, once a minute at most. With several
    nodes, the node at the address of --broker answers about itself.
    """
    admin.ask("broker.findings", _print_findings)


def _print_findings(answer: dict[str, Any]) -> None:
    click.echo(f"Node {answer['node']}:")
    print_rows(answer["findings"], ("level", "check", "text", "remedy"), "no problem found")


@verb(broker, "update", "--table-parallelism 8")
@click.option(
    "--table-parallelism",
    type=click.IntRange(1, MOST_PARALLELISM),
    required=True,
    help="Number of tables of the log. The broker at once starts a new generation with them.",
)
def update_broker(admin: AdminCommand, table_parallelism: int) -> None:
    """Change how the broker stores its log, while it runs.

    Existing messages stay where they are, and offsets continue. The change persists across
    restarts, unless the broker is started with another --table-parallelism.
    """
    admin.ask("broker.update", print_record, table_parallelism=table_parallelism)
