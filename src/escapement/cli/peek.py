"""`escapement peek`: what is pending on a topic, next due first, without consuming it."""

from __future__ import annotations

import json
from typing import Any

import click

from escapement.cli.remote import broker_option, with_broker
from escapement.cli.table import print_rows
from escapement.client.broker import Broker


@click.command(
    epilog="""\b
    Examples:
      escapement peek orders
      escapement peek shop/eu/orders --count 100 -o json

    Shown is what is not yet due, and what is due and not yet acknowledged by every shared
    subscription. Of each payload the first 512 bytes.
    """
)
@click.argument("topic")
@click.option(
    "--count",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many messages.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print them.",
)
@broker_option
def peek(topic: str, count: int, output: str, at_broker: tuple[str, int]) -> None:
    """Show what is pending on TOPIC, next due first, without consuming it."""

    async def ask(broker: Broker) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await broker.admin("topics.peek", topic=topic, count=count)
        return found

    rows = [{**row, "payload": _text(row["payload"])} for row in with_broker(at_broker, ask)]
    if output == "json":
        click.echo(json.dumps(rows))
    else:
        columns = ("due_at_ms", "due_in_ms", "offset", "key", "size_bytes", "payload")
        print_rows(rows, columns, f"nothing is pending on {topic}")


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "backslashreplace")
