"""`escapement admin subscriptions`: subscriptions, their progress, positions and policies."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from escapement.cli.admin.group import AdminCommand, subscription_argument, topic_argument, verb
from escapement.cli.input.message_ids import offset_of, position_of
from escapement.cli.input.options import kind_option
from escapement.cli.input.parameters import duration_ms, moment, start_position
from escapement.cli.input.policy import policy_options, policy_printer
from escapement.cli.output.table import print_record, print_rows
from escapement.client.delivery_times import Where
from escapement.storage.catalog.policy import SubscriptionPolicy

SUBSCRIPTION_COLUMNS: Final = (
    "subscription",
    "kind",
    "consumers",
    "ready",
    "in_flight",
    "retrying",
    "unacknowledged",
    "delivered",
    "redelivered",
)
_FIGURES: Final = ("delivered", "p50_ms", "p99_ms", "max_ms")
_COUNTED: Final = (*SUBSCRIPTION_COLUMNS[:3], "due", "scheduled", *SUBSCRIPTION_COLUMNS[4:])
_OVERVIEW: Final = ("topic", *SUBSCRIPTION_COLUMNS, "dead_lettered")
_print: Final = policy_printer(SubscriptionPolicy)


@click.group()
def subscriptions() -> None:
    """Manage the subscriptions of a topic."""


@verb(subscriptions, "list", "shop/eu/orders")
@topic_argument
def list_subscriptions(admin: AdminCommand, topic: str) -> None:
    """List the subscriptions of a topic.

    The column unacknowledged counts messages that are due or not. For a shared subscription it
    includes messages that were due before the subscription began, which it never gets. The columns
    due and scheduled are estimates if the topic has some hundred thousand messages.
    """
    admin.ask(
        "subscriptions.list",
        lambda rows: print_rows(rows, _COUNTED, "no subscriptions"),
        topic=topic,
    )


@verb(subscriptions, "lateness", "", "--namespace shop/eu --within 10m", "shop/eu/orders billing")
@click.argument("topic", required=False)
@click.argument("subscription", required=False)
@click.option("--namespace", metavar="NAMESPACE", help="Only subscriptions of this namespace.")
@click.option(
    "--within",
    "within_ms",
    type=duration_ms,
    metavar="DURATION",
    help="Only messages of the last minutes, of at most 2h.  [default: 1h]",
)
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Most subscriptions.  [default: 50]"
)
def show_lateness(
    admin: AdminCommand,
    topic: str | None,
    subscription: str | None,
    namespace: str | None,
    within_ms: int | None,
    count: int | None,
) -> None:
    """Show how late messages were delivered.

    Lists the subscriptions with the highest p99, or the minutes of one SUBSCRIPTION of a TOPIC. The
    lateness of a message is the time from its due time to its first delivery.
    """
    if (topic is None) != (subscription is None):
        raise click.UsageError("Give a TOPIC and its SUBSCRIPTION, or neither.")
    if topic is not None and namespace is not None:
        raise click.UsageError("Give a TOPIC or --namespace, not both.")

    def show(answer: dict[str, Any]) -> None:
        named = "worst" in answer
        heads = ("topic", "subscription") if named else ("at_ms",)
        rows = answer["worst" if named else "minutes"]
        print_rows(rows, (*heads, *_FIGURES), "no messages were delivered in this time")

    admin.ask(
        "subscriptions.lateness",
        show,
        topic=topic,
        subscription=subscription,
        namespace=namespace,
        within_ms=within_ms,
        count=count,
    )


@verb(
    subscriptions,
    "overview",
    "",
    "shop/eu --search bill",
    "--after shop/eu/orders billing --count 1000 -o json",
)
@click.option("--search", metavar="TEXT", help="Only topics or subscriptions with TEXT in a name.")
@click.option(
    "--after", nargs=2, metavar="TOPIC SUBSCRIPTION", help="Begin after this subscription, by name."
)
@click.option(
    "--count",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="The most subscriptions to show.",
)
@click.argument("namespace", required=False, metavar="[TENANT/NAMESPACE]")
def overview(
    admin: AdminCommand,
    namespace: str | None,
    search: str | None,
    after: tuple[str, str] | None,
    count: int,
) -> None:
    """Show the subscriptions of all topics, or of those of one namespace, by name.

    The columns ready, in_flight and retrying are 0 for topics that are not in use.
    """

    def show(answer: dict[str, Any]) -> None:
        print_rows(answer["subscriptions"], _OVERVIEW, "no subscriptions")
        if answer["next"] is not None:
            topic, name = answer["next"]
            click.echo(f"... continue with --after {topic} {name}", err=True)

    admin.ask(
        "subscriptions.overview",
        show,
        namespace=namespace,
        search=search,
        after=None if after is None else [after[0], after[1]],
        count=count,
    )


@verb(subscriptions, "get", "shop/eu/orders billing")
@topic_argument
@subscription_argument
def get_subscription(admin: AdminCommand, topic: str, subscription: str) -> None:
    """Show a subscription and its policy."""
    admin.ask("subscriptions.get", _print, topic=topic, subscription=subscription)


@verb(
    subscriptions,
    "update",
    "shop/eu/orders billing --ack-wait 1m --max-backoff 1h",
    "shop/eu/orders billing --max-backoff default",
)
@policy_options(SubscriptionPolicy, changing=True)
@topic_argument
@subscription_argument
def update_subscription(
    admin: AdminCommand, topic: str, subscription: str, policy: dict[str, Any]
) -> None:
    """Change the policy of a subscription.

    Only the given options change; the value "default" resets an option. Takes effect at once.
    """
    admin.ask(
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
    type=start_position,
    metavar="POSITION",
    default="latest",
    show_default=True,
    help="Where the subscription begins: latest, earliest (the first message in the log), an "
    "offset, a message id, or a time such as 2026-12-24T18:00Z. Latest and times refer to due "
    "times if the subscription is shared, otherwise to publish times.",
)
@policy_options(SubscriptionPolicy)
@topic_argument
@subscription_argument
def create_subscription(
    admin: AdminCommand,
    topic: str,
    subscription: str,
    kind: str,
    position: Where,
    policy: dict[str, Any],
) -> None:
    """Create a subscription, and its topic if it does not exist."""
    admin.ask(
        "subscriptions.create",
        print_record,
        topic=topic,
        subscription=subscription,
        kind=kind,
        position=str(position_of(position, topic)),
        policy=policy,
    )


@verb(
    subscriptions,
    "seek",
    "shop/eu/orders billing --earliest",
    "orders audit --offset 4711",
    "orders audit --time 2026-12-24T18:00+01:00",
)
@click.option(
    "--offset", metavar="ID", help="Begin with this message: TOPIC@OFFSET, or its offset."
)
@click.option(
    "--time",
    type=moment,
    metavar="TIME",
    help="Begin with messages due from this time on if the subscription is shared, otherwise with "
    "messages published from this time on.",
)
@click.option("--earliest", is_flag=True, help="Begin with the first message in the log.")
@click.option("--latest", is_flag=True, help="Begin with messages from now on.")
@topic_argument
@subscription_argument
def seek_subscription(
    admin: AdminCommand,
    topic: str,
    subscription: str,
    offset: str | None,
    time: datetime | None,
    earliest: bool,
    latest: bool,
) -> None:
    """Move a subscription to another position. Its consumers stay connected.

    Its acknowledgements are discarded, and its messages in flight are withdrawn.
    """
    words = "earliest" if earliest else None, "latest" if latest else None
    first = None if offset is None else offset_of(offset, topic)
    positions: list[Where] = [given for given in (*words, first, time) if given is not None]
    if len(positions) != 1:
        raise click.UsageError("Give one of --offset, --time, --earliest and --latest.")
    admin.ask(
        "subscriptions.seek",
        _print_position,
        topic=topic,
        subscription=subscription,
        position=str(position_of(positions[0], topic)),
    )


def _print_position(answer: dict[str, Any]) -> None:
    kind, _, value = answer.pop("position").partition(":")
    if kind == "time":
        answer["position_at_ms"] = int(value)
    else:
        answer["position"] = f"{kind} {value}".strip()
    print_record(answer)


@verb(subscriptions, "delete", "shop/eu/orders billing")
@click.option("--force", is_flag=True, help="Delete it even if it has connected consumers.")
@topic_argument
@subscription_argument
def delete_subscription(admin: AdminCommand, topic: str, subscription: str, force: bool) -> None:
    """Delete a subscription. Its topic keeps the messages.

    Its dead letters stay too: see `escapement dlq ... --in DEAD_LETTER_TOPIC`.
    """
    admin.ask(
        "subscriptions.delete", print_record, topic=topic, subscription=subscription, force=force
    )
