"""`escapement admin subscriptions`: how far they are, and where they begin."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from escapement.cli.admin.group import Desk, subscription_argument, topic_argument, verb
from escapement.cli.options import kind_option
from escapement.cli.parameters import moment, place
from escapement.cli.policy import policy_options, policy_printer
from escapement.cli.table import print_record, print_rows
from escapement.client import schedule
from escapement.client.schedule import Where
from escapement.storage.policy import SubscriptionPolicy

SUBSCRIPTION_COLUMNS: Final = (
    "subscription",
    "kind",
    "consumers",
    "ready",
    "in_flight",
    "unacknowledged",
    "delivered",
    "redelivered",
)
_print: Final = policy_printer(SubscriptionPolicy)


@click.group()
def subscriptions() -> None:
    """Subscriptions of a topic, and how far they are."""


@verb(subscriptions, "list", "shop/eu/orders")
@topic_argument
def list_subscriptions(desk: Desk, topic: str) -> None:
    """List the subscriptions of a topic."""
    desk.ask(
        "subscriptions.list",
        lambda rows: print_rows(rows, SUBSCRIPTION_COLUMNS, "no subscriptions"),
        topic=topic,
    )


@verb(subscriptions, "get", "shop/eu/orders billing")
@topic_argument
@subscription_argument
def get_subscription(desk: Desk, topic: str, subscription: str) -> None:
    """Show what was decided for a subscription."""
    desk.ask("subscriptions.get", _print, topic=topic, subscription=subscription)


@verb(
    subscriptions,
    "update",
    "shop/eu/orders billing --ack-wait 1m --max-backoff 1h",
    "shop/eu/orders billing --max-backoff default",
)
@policy_options(SubscriptionPolicy, changing=True)
@topic_argument
@subscription_argument
def update_subscription(desk: Desk, topic: str, subscription: str, policy: dict[str, Any]) -> None:
    """Change what was decided for a subscription.

    What is not named stays; the value "default" sets it back. Takes effect at once.
    """
    desk.ask(
        "subscriptions.update",
        _print,
        topic=topic,
        subscription=subscription,
        policy=policy,
    )


@verb(
    subscriptions,
    "create",
    "shop/eu/orders billing",
    "orders audit --from earliest",
    "orders since --from 2026-12-24T18:00Z",
)
@kind_option
@click.option(
    "--from",
    "--position",
    "position",
    type=place,
    metavar="POSITION",
    default="latest",
    show_default=True,
    help="latest begins with what comes due from now on, earliest with the first message kept; "
    "an offset, or a time such as 2026-12-24T18:00Z: what is due from then on, if it is shared, "
    "and otherwise what was accepted from then on.",
)
@policy_options(SubscriptionPolicy)
@topic_argument
@subscription_argument
def create_subscription(
    desk: Desk, topic: str, subscription: str, kind: str, position: Where, policy: dict[str, Any]
) -> None:
    """Create a subscription, and its topic if need be."""
    desk.ask(
        "subscriptions.create",
        print_record,
        topic=topic,
        subscription=subscription,
        kind=kind,
        position=str(schedule.position(position)),
        policy=policy,
    )


@verb(
    subscriptions,
    "seek",
    "shop/eu/orders billing --earliest",
    "orders audit --offset 4711",
    "orders audit --time 2026-12-24T18:00+01:00",
)
@click.option("--offset", type=click.IntRange(min=0), help="Begin with this message.")
@click.option(
    "--time",
    type=moment,
    metavar="TIME",
    help="Begin with what is due from then on, if it is shared, and otherwise with what was "
    "accepted from then on.",
)
@click.option("--earliest", is_flag=True, help="Begin with the first message kept.")
@click.option("--latest", is_flag=True, help="Begin with what comes from now on.")
@topic_argument
@subscription_argument
def seek_subscription(
    desk: Desk,
    topic: str,
    subscription: str,
    offset: int | None,
    time: datetime | None,
    earliest: bool,
    latest: bool,
) -> None:
    """Have a subscription begin again elsewhere; its consumers stay.

    What it has acknowledged is forgotten, what it has handed out is taken back.
    """
    words = "earliest" if earliest else None, "latest" if latest else None
    places: list[Where] = [given for given in (*words, offset, time) if given is not None]
    if len(places) != 1:
        raise click.UsageError("Say one of --offset, --time, --earliest and --latest.")
    desk.ask(
        "subscriptions.seek",
        _print_place,
        topic=topic,
        subscription=subscription,
        position=str(schedule.position(places[0])),
    )


def _print_place(answer: dict[str, Any]) -> None:
    kind, _, value = answer.pop("position").partition(":")
    if kind == "time":
        answer["position_at_ms"] = int(value)
    else:
        answer["position"] = f"{kind} {value}".strip()
    print_record(answer)


@verb(subscriptions, "delete", "shop/eu/orders billing")
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
@topic_argument
@subscription_argument
def delete_subscription(desk: Desk, topic: str, subscription: str, force: bool) -> None:
    """Delete a subscription; its topic keeps the messages.

    Its dead letters stay where they are too: `escapement dlq ... --in DEAD_LETTER_TOPIC`.
    """
    desk.ask(
        "subscriptions.delete", print_record, topic=topic, subscription=subscription, force=force
    )
