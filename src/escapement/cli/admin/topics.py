"""`escapement admin topics`: topics, their figures and their policies."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, TextIO

import click

from escapement.cli.admin.group import AdminCommand, topic_argument, verb
from escapement.cli.admin.subscriptions import SUBSCRIPTION_COLUMNS
from escapement.cli.input.policy import DELAY_FLAGS, policy_options, policy_printer
from escapement.cli.output.table import print_record, print_rows
from escapement.storage.catalog.policy import TopicPolicy

_PRODUCER_COLUMNS: Final = ("name", "connected", "last_sequence")
# The most topics that one request may create.
_CREATED_AT_ONCE: Final = 10_000
_print: Final = policy_printer(TopicPolicy)


@click.group()
def topics() -> None:
    """Manage topics."""


@verb(topics, "list", "", "shop/eu")
@click.argument("namespace", required=False, metavar="[TENANT/NAMESPACE]")
def list_topics(admin: AdminCommand, namespace: str | None) -> None:
    """List the topics of all namespaces, or of one."""

    def show(answer: Any) -> None:
        print_rows([{"topic": name} for name in answer["topics"]], ["topic"], "no topics")
        if len(answer["topics"]) < answer["total"]:
            click.echo(
                f"... of {answer['total']} topics; give a namespace to list only its topics",
                err=True,
            )

    admin.ask("topics.list", show, namespace=namespace)


@verb(topics, "stats", "shop/eu/orders", "shop/eu/orders -o json")
@topic_argument
def topic_stats(admin: AdminCommand, topic: str) -> None:
    """Show the figures of a topic, its producers and its subscriptions.

    The column unacknowledged is as in `escapement admin subscriptions list`.
    """

    def show(answer: dict[str, Any]) -> None:
        lists = ("producers", "subscriptions")
        print_record({name: value for name, value in answer.items() if name not in lists})
        click.echo()
        print_rows(answer["subscriptions"], SUBSCRIPTION_COLUMNS, "no subscriptions")
        click.echo()
        print_rows(answer["producers"], _PRODUCER_COLUMNS, "no producers")

    admin.ask("topics.stats", show, topic=topic)


@verb(topics, "get", "shop/eu/orders")
@topic_argument
def get_topic(admin: AdminCommand, topic: str) -> None:
    """Show a topic and its policy."""
    admin.ask("topics.get", _print, topic=topic)


@verb(topics, "update", "shop/eu/orders --ttl 1h", "shop/eu/orders --ttl default")
@policy_options(TopicPolicy, changing=True)
@topic_argument
def update_topic(admin: AdminCommand, topic: str, policy: dict[str, Any]) -> None:
    """Change the policy of a topic.

    Only the given options change; the value "default" resets an option. Takes effect at once.
    """
    admin.ask("topics.update", _print, topic=topic, policy=policy)


@verb(topics, "set-delays", "shop/eu/orders --default 5m --max 30d", "shop/eu/orders --max default")
@policy_options(TopicPolicy, changing=True, flags=DELAY_FLAGS)
@topic_argument
def set_topic_delays(admin: AdminCommand, topic: str, policy: dict[str, Any]) -> None:
    """Set the default, the minimum and the maximum delay of messages of a topic.

    The broker refuses to publish messages outside the bounds. A delay counts from the moment the
    broker accepts a message. Only the given options change; the value "default" resets an option.
    A value that the topic does not set is that of its namespace.
    """
    admin.ask("topics.update", _print, topic=topic, policy=policy)


@verb(topics, "create", "shop/eu/orders")
@topic_argument
def create_topic(admin: AdminCommand, topic: str) -> None:
    """Create a topic, and its namespace if it does not exist."""
    admin.ask("topics.create", print_record, topic=topic)


@verb(topics, "create-many", "- --subscription billing")
@click.option("--subscription", help="Give each new topic a shared subscription of this name.")
@click.argument("file", type=click.File("r"))
def create_topics(admin: AdminCommand, file: TextIO, subscription: str | None) -> None:
    """Create the topics that FILE names, one per line; "-" is standard input.

    Existing topics stay as they are. Missing namespaces are created.
    """
    names = [line.strip() for line in file if line.strip()]
    total: Counter[str] = Counter(created=0, existed=0)
    for low in range(0, len(names), _CREATED_AT_ONCE):
        some = names[low : low + _CREATED_AT_ONCE]
        total.update(admin.answer("topics.create_many", topics=some, subscription=subscription))
    admin.tell(dict(total), print_record)


@verb(topics, "delete", "shop/eu/orders")
@click.option("--force", is_flag=True, help="Delete it even if it has connected consumers.")
@topic_argument
def delete_topic(admin: AdminCommand, topic: str, force: bool) -> None:
    """Delete a topic with its subscriptions and all of its messages."""
    admin.ask("topics.delete", print_record, topic=topic, force=force)
