"""`escapement admin audit`: who changed what, when and why."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import click

from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.input.parameters import duration_ms, moment
from escapement.cli.output.table import print_rows
from escapement.client.broker import Broker
from escapement.client.delivery_times import at_ms
from escapement.clock import SystemClock

_COLUMNS: Final = (
    "at_ms", "role", "client", "peer", "verb", "object", "outcome", "reason", "arguments",
)  # fmt: skip
# The rows of one request.
_PAGE_ROWS: Final = 500


@click.group()
def audit() -> None:
    """Show who changed what, when and why."""


@verb(audit, "list", "--since 1d", "--verb topics. --object 'shop/eu/*'", "--role ops -o json")
@click.option(
    "--since", "since_ms", type=duration_ms, metavar="DURATION", help="Actions of the last time."
)
@click.option("--until", type=moment, metavar="TIME", help="Actions before this time.")
@click.option("--role", metavar="ROLE", help="Actions of this role.")
@click.option("--verb", "begins", metavar="TEXT", help="Verbs that begin so, such as topics.")
@click.option("--object", "about", metavar="NAME", help="Actions on this topic, or on 'shop/eu/*'.")
@click.option(
    "--count", type=click.IntRange(1), default=100, show_default=True, help="Most actions to list."
)
def list_actions(
    admin: AdminCommand,
    since_ms: int | None,
    until: datetime | None,
    role: str | None,
    begins: str | None,
    about: str | None,
    count: int,
) -> None:
    """List the actions of administration, the newest first.

    An action without an outcome may have taken effect or not: the broker, or the connection to the
    client, ended before the action did.
    """
    wanted = {
        "role": role,
        "verbs": begins,
        "object": about,
        "from_ms": None if since_ms is None else max(SystemClock().now_ms() - since_ms, 0),
        "until_ms": None if until is None else max(at_ms(until), 0),
    }

    async def read(broker: Broker) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        before = None
        while True:
            page = await broker.admin(
                "audit.list", **wanted, before=before, count=min(count - len(rows), _PAGE_ROWS)
            )
            rows += page["actions"]
            before = page["next"]
            if before is None or len(rows) == count:
                return rows

    rows = [row | {"arguments": json.loads(row["arguments"])} for row in admin.work(read)]
    admin.tell(rows, lambda rows: print_rows(rows, _COLUMNS, "no actions"))
