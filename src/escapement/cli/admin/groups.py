"""`escapement admin groups`: groups of messages, and the follow-ups of their completion."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any, Final

import click

from escapement.cli.admin.group import AdminCommand, topic_argument, verb
from escapement.cli.input.parameters import duration_ms, moment, name_and_value
from escapement.cli.output.table import print_record, print_rows
from escapement.client.producing.groups import FollowUp
from escapement.message import DEFAULT_PRIORITY, MAX_PRIORITY

_COLUMNS: Final = ("group", "state", "messages", "waiting")
_COMPLETIONS: Final = (
    "subscription",
    "target",
    "state",
    "remaining",
    "closed_at_ms",
    "fired_at_ms",
)


@click.group()
def groups() -> None:
    """Manage groups of messages, and the follow-ups published on their completion."""


_group_argument = click.argument("group")


@verb(groups, "list", "shop/eu/orders")
@topic_argument
def list_groups(admin: AdminCommand, topic: str) -> None:
    """List the groups of a topic, and how many subscriptions each closed group waits for."""

    def show(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["waiting"] = sum(one["state"] == "waiting" for one in row["completions"])
        print_rows(rows, _COLUMNS, "no groups")

    admin.ask("groups.list", show, topic=topic)


@verb(groups, "show", "shop/eu/orders import-7")
@topic_argument
@_group_argument
def show_group(admin: AdminCommand, topic: str, group: str) -> None:
    """Show a group, and the progress of each subscription it was closed for."""
    admin.ask("groups.get", _show, topic=topic, group=group)


@verb(
    groups,
    "close",
    'shop/eu/orders import-7 workers reports "import 7 is done"',
    "shop/eu/orders import-7 workers reports --delay 5m --key import-7",
)
@topic_argument
@_group_argument
@click.argument("subscription")
@click.argument("target", metavar="TARGET")
@click.argument("payload", required=False, default="")
@click.option("--key", help="Key of the follow-up.")
@click.option(
    "--property",
    "properties",
    type=name_and_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of the follow-up; may be given several times.",
)
@click.option(
    "--priority",
    type=click.IntRange(0, MAX_PRIORITY),
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="Priority of the follow-up.",
)
@click.option(
    "--delay",
    "delay_ms",
    type=duration_ms,
    metavar="DURATION",
    help="Deliver the follow-up this long after completion: 500ms, 30s, 5m, 1h, 3d.",
)
@click.option(
    "--at",
    type=moment,
    metavar="TIME",
    help="Deliver the follow-up not before this time: ISO 8601 with an offset or Z.",
)
def close_group(
    admin: AdminCommand,
    topic: str,
    group: str,
    subscription: str,
    target: str,
    payload: str,
    key: str | None,
    properties: tuple[tuple[str, str], ...],
    priority: int,
    delay_ms: int | None,
    at: datetime | None,
) -> None:
    """Close GROUP: when SUBSCRIPTION has completed it, PAYLOAD is published to TARGET.

    No message can join a closed group. Closing it again with the same arguments changes
    nothing. It can be closed for several subscriptions. A group without messages is complete
    at once.
    """
    if delay_ms is not None and at is not None:
        raise click.UsageError("Give --delay or --at, not both.")
    then = FollowUp(
        os.fsencode(payload),
        target,
        key=key,
        properties=dict(properties),
        priority=priority,
        delay=None if delay_ms is None else (delay_ms, "ms"),
        at=at,
    )
    admin.ask(
        "groups.close",
        _show,
        topic=topic,
        group=group,
        subscription=subscription,
        **then._arguments(),
    )


@verb(groups, "delete", "shop/eu/orders import-7")
@topic_argument
@_group_argument
def delete_group(admin: AdminCommand, topic: str, group: str) -> None:
    """Delete a group and its pending follow-ups. Its messages stay."""
    admin.ask("groups.delete", print_record, topic=topic, group=group)


def _show(answer: dict[str, Any]) -> None:
    print_record({name: value for name, value in answer.items() if name != "completions"})
    click.echo()
    print_rows(answer["completions"], _COMPLETIONS, "not closed")
