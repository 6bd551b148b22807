"""`escapement admin`: namespaces, topics, subscriptions and the broker, by its verbs.

Each command asks the broker for one verb. What the broker answers is printed as it came
with ``-o json``, and as a table otherwise; tables may leave things out, JSON does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, Final

import click

from escapement.broker.config import MOST_PARALLELISM
from escapement.cli.options import kind_option
from escapement.cli.parameters import moment, place, positive_duration_ms
from escapement.cli.policy import policy_options
from escapement.cli.remote import DEFAULT_BROKER, broker_address, with_broker
from escapement.cli.table import print_record, print_rows
from escapement.client import schedule
from escapement.client.schedule import Where
from escapement.storage.policy import NamespacePolicy, SubscriptionPolicy, TopicPolicy

_NAMESPACE_COLUMNS: Final = ("namespace", "delays_enabled", "granularity_ms", "tick_ms")
_SUBSCRIPTION_COLUMNS: Final = (
    "subscription",
    "kind",
    "consumers",
    "ready",
    "in_flight",
    "unacknowledged",
    "delivered",
    "redelivered",
)
_PRODUCER_COLUMNS: Final = ("name", "connected", "last_sequence")
_INBOX_COLUMNS: Final = (
    "target",
    "letters",
    "messages",
    "size_bytes",
    "oldest_at_ms",
    "held",
    "reason",
)
_META: Final = "escapement.admin"


class Desk:
    """Asks the broker, and prints what it answers."""

    def __init__(self, at: tuple[str, int], output: str) -> None:
        self._at = at
        self._output = output

    def ask(self, verb: str, show: Callable[[Any], None], **arguments: Any) -> None:
        """Carry out ``verb``; ``show`` prints the answer where a table is wanted."""
        answer = with_broker(self._at, lambda broker: broker.admin(verb, **arguments))
        if self._output == "json":
            click.echo(json.dumps(answer, indent=2))
        else:
            show(answer)


def _options(*, leaf: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--broker and -o: understood by the group and by each command, which goes first."""

    def near(name: str) -> Any:
        return (lambda: click.get_current_context().meta[f"{_META}.{name}"]) if leaf else None

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        context.meta[f"{_META}.{option.name}"] = value

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        broker = click.option(
            "--broker",
            type=broker_address if leaf else str,
            metavar="HOST:PORT",
            default=near("broker") if leaf else DEFAULT_BROKER,
            envvar=None if leaf else "ESCAPEMENT_BROKER",
            show_default=not leaf,
            show_envvar=not leaf,
            expose_value=leaf,
            callback=None if leaf else keep,
            help="The broker to talk to.",
        )
        output = click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "json"]),
            default=near("output") if leaf else "table",
            show_default=not leaf,
            expose_value=leaf,
            callback=None if leaf else keep,
            help="How to print the answer.",
        )
        return broker(output(command))

    return decorate


def _verb(
    group: click.Group, name: str, *examples: str
) -> Callable[[Callable[..., None]], click.Command]:
    """A command of ``group``, whose function gets a desk first, then its own arguments."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @_options(leaf=True)
        @wraps(function)
        def command(broker: tuple[str, int], output: str, **arguments: Any) -> None:
            function(Desk(broker, output), **arguments)

        lines = "\n".join(f"  escapement admin {group.name} {name} {one}" for one in examples)
        epilog = f"\b\nExamples:\n{lines}" if examples else None
        made = group.command(name, epilog=epilog)(command)
        # What a command has of its own comes first in its help.
        made.params.sort(key=lambda param: param.name in ("broker", "output"))
        return made

    return decorate


@click.group()
@_options(leaf=False)
def admin() -> None:
    """Look after what a running broker keeps.

    \b
    Examples:
      escapement admin broker stats
      escapement admin namespaces enable-delayed-message -p 1h -t 100ms shop/eu
      escapement admin topics stats shop/eu/orders -o json
    """


# -- namespaces --------------------------------------------------------------------


@admin.group()
def namespaces() -> None:
    """Namespaces, and how they treat delays."""


_namespace = click.argument("namespace", metavar="TENANT/NAMESPACE")


@_verb(namespaces, "list")
def list_namespaces(desk: Desk) -> None:
    """List the namespaces."""
    columns = (*_NAMESPACE_COLUMNS, "topics")
    desk.ask("namespaces.list", lambda rows: print_rows(rows, columns, "no namespaces"))


@_verb(namespaces, "get", "shop/eu")
@_namespace
def get_namespace(desk: Desk, namespace: str) -> None:
    """Show one namespace."""
    desk.ask("namespaces.get", print_record, namespace=namespace)


@_verb(namespaces, "update", "shop/eu")
@policy_options(NamespacePolicy)
@_namespace
def update_namespace(desk: Desk, namespace: str, policy: dict[str, Any]) -> None:
    """Change what was decided for a namespace.

    What is not named stays; the value "default" sets it back. Takes effect at once.
    """
    desk.ask("namespaces.update", print_record, namespace=namespace, policy=policy)


@_verb(namespaces, "create", "shop/eu")
@_namespace
def create_namespace(desk: Desk, namespace: str) -> None:
    """Create a namespace, with delays enabled.

    The time partition granularity is 5m and the tick 1s."""
    desk.ask("namespaces.create", print_record, namespace=namespace)


@_verb(namespaces, "delete", "shop/eu")
@_namespace
def delete_namespace(desk: Desk, namespace: str) -> None:
    """Delete a namespace that has no topics."""
    desk.ask("namespaces.delete", print_record, namespace=namespace)


@_verb(namespaces, "enable-delayed-message", "shop/eu", "-p 1h -t 100ms shop/eu")
@click.option(
    "-p",
    "--time-partition-granularity",
    "granularity_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Span of one partition of the delayed index; as it is if not given, 5m at first.",
)
@click.option(
    "-t",
    "--tick-duration",
    "tick_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="How late a message may be at most; as it is if not given, 1s at first.",
)
@_namespace
def enable_delayed_message(
    desk: Desk, namespace: str, granularity_ms: int | None, tick_ms: int | None
) -> None:
    """Deliver messages at their time.

    Takes effect at once and moves no message's time, whether values grow or shrink.
    """
    desk.ask(
        "namespaces.enable_delayed_message",
        print_record,
        namespace=namespace,
        granularity_ms=granularity_ms,
        tick_ms=tick_ms,
    )


@_verb(namespaces, "disable-delayed-message", "shop/eu")
@_namespace
def disable_delayed_message(desk: Desk, namespace: str) -> None:
    """Refuse messages with a time.

    Messages that are pending keep theirs, and are delivered then.
    """
    desk.ask("namespaces.disable_delayed_message", print_record, namespace=namespace)


# -- topics ------------------------------------------------------------------------


@admin.group()
def topics() -> None:
    """Topics and what is in them."""


_topic = click.argument("topic")


@_verb(topics, "list", "", "shop/eu")
@click.argument("namespace", required=False, metavar="[TENANT/NAMESPACE]")
def list_topics(desk: Desk, namespace: str | None) -> None:
    """List the topics, of all namespaces or of one."""

    def show(answer: Any) -> None:
        print_rows([{"topic": name} for name in answer["topics"]], ["topic"], "no topics")
        if len(answer["topics"]) < answer["total"]:
            click.echo(f"... of {answer['total']}; name a namespace to see fewer", err=True)

    desk.ask("topics.list", show, namespace=namespace)


@_verb(topics, "stats", "shop/eu/orders", "shop/eu/orders -o json")
@_topic
def topic_stats(desk: Desk, topic: str) -> None:
    """Show a topic's figures, and those of its producers and subscriptions."""

    def show(answer: dict[str, Any]) -> None:
        lists = ("producers", "subscriptions")
        print_record({name: value for name, value in answer.items() if name not in lists})
        click.echo()
        print_rows(answer["subscriptions"], _SUBSCRIPTION_COLUMNS, "no subscriptions")
        click.echo()
        print_rows(answer["producers"], _PRODUCER_COLUMNS, "no producers")

    desk.ask("topics.stats", show, topic=topic)


@_verb(topics, "get", "shop/eu/orders")
@_topic
def get_topic(desk: Desk, topic: str) -> None:
    """Show what was decided for a topic."""
    desk.ask("topics.get", print_record, topic=topic)


@_verb(topics, "update", "shop/eu/orders")
@policy_options(TopicPolicy)
@_topic
def update_topic(desk: Desk, topic: str, policy: dict[str, Any]) -> None:
    """Change what was decided for a topic.

    What is not named stays; the value "default" sets it back. Takes effect at once.
    """
    desk.ask("topics.update", print_record, topic=topic, policy=policy)


@_verb(topics, "create", "shop/eu/orders")
@_topic
def create_topic(desk: Desk, topic: str) -> None:
    """Create a topic, and its namespace if need be."""
    desk.ask("topics.create", print_record, topic=topic)


@_verb(topics, "delete", "shop/eu/orders")
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
@_topic
def delete_topic(desk: Desk, topic: str, force: bool) -> None:
    """Delete a topic with its subscriptions and all of its messages."""
    desk.ask("topics.delete", print_record, topic=topic, force=force)


# -- subscriptions -----------------------------------------------------------------


@admin.group()
def subscriptions() -> None:
    """Subscriptions of a topic, and how far they are."""


@_verb(subscriptions, "list", "shop/eu/orders")
@_topic
def list_subscriptions(desk: Desk, topic: str) -> None:
    """List the subscriptions of a topic."""
    desk.ask(
        "subscriptions.list",
        lambda rows: print_rows(rows, _SUBSCRIPTION_COLUMNS, "no subscriptions"),
        topic=topic,
    )


@_verb(subscriptions, "get", "shop/eu/orders billing")
@_topic
@click.argument("subscription")
def get_subscription(desk: Desk, topic: str, subscription: str) -> None:
    """Show what was decided for a subscription."""
    desk.ask("subscriptions.get", print_record, topic=topic, subscription=subscription)


@_verb(
    subscriptions,
    "update",
    "shop/eu/orders billing --ack-wait 1m --max-backoff 1h",
    "shop/eu/orders billing --max-backoff default",
)
@policy_options(SubscriptionPolicy)
@_topic
@click.argument("subscription")
def update_subscription(desk: Desk, topic: str, subscription: str, policy: dict[str, Any]) -> None:
    """Change what was decided for a subscription.

    What is not named stays; the value "default" sets it back. Takes effect at once.
    """
    desk.ask(
        "subscriptions.update",
        print_record,
        topic=topic,
        subscription=subscription,
        policy=policy,
    )


@_verb(
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
@_topic
@click.argument("subscription")
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


@_verb(
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
@_topic
@click.argument("subscription")
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
        print_record,
        topic=topic,
        subscription=subscription,
        position=str(schedule.position(places[0])),
    )


@_verb(subscriptions, "delete", "shop/eu/orders billing")
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected.")
@_topic
@click.argument("subscription")
def delete_subscription(desk: Desk, topic: str, subscription: str, force: bool) -> None:
    """Delete a subscription; its topic keeps the messages."""
    desk.ask(
        "subscriptions.delete", print_record, topic=topic, subscription=subscription, force=force
    )


# -- the inbox ---------------------------------------------------------------------


@admin.group()
def inbox() -> None:
    """Letters: what waits to be moved into topics without a connection."""


@_verb(inbox, "list")
def list_inbox(desk: Desk) -> None:
    """Show what waits in the inbox, by topic, and why.

    Letters that are held can never be moved; all others go on by themselves once there is
    no reason to wait.
    """
    desk.ask("inbox.list", lambda rows: print_rows(rows, _INBOX_COLUMNS, "no letters"))


@_verb(inbox, "discard", "shop/eu/orders")
@click.argument("target", metavar="TOPIC")
def discard_letters(desk: Desk, target: str) -> None:
    """Delete all letters that wait for a topic."""
    desk.ask("inbox.discard", print_record, target=target)


# -- the broker --------------------------------------------------------------------


@admin.group()
def broker() -> None:
    """The broker itself."""


@_verb(broker, "stats", "", "-o json")
def broker_stats(desk: Desk) -> None:
    """Show the broker's figures: its database, its index, what waits for commit."""
    desk.ask("broker.stats", print_record)


@_verb(broker, "update", "--table-parallelism 8")
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
