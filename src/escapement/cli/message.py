"""`escapement message`: show single messages."""

from __future__ import annotations

from typing import Final

import click

from escapement.cli.input.message_ids import topic_and_offset
from escapement.cli.input.options import output_option
from escapement.cli.input.remote import ask_broker, broker_option
from escapement.cli.output.line import body, print_json, text
from escapement.cli.output.table import print_record, print_rows
from escapement.client.connection.address import Addresses

_COLUMNS: Final = (
    "subscription",
    "kind",
    "state",
    "attempts",
    "consumer",
    "since_at_ms",
    "until_at_ms",
)


@click.group()
def message() -> None:
    """Show a message and its history."""


@message.command(
    epilog="""\b
    Examples:
      escapement message show orders 4711
      escapement message show shop/eu/orders 4711 -o json
      escapement message show shop/eu/orders@4711

    ID is TOPIC@OFFSET, as printed by `escapement produce`, or the offset alone. TOPIC may be left
    out before TOPIC@OFFSET.

    The state of a message is to_be_fired (not yet due) or fired (due). Once every subscription
    is done with it, the state is acked, lapsed or cancelled. The table shows the message's state
    for each subscription.

    A lapsed message expired, or was dropped by a quota, before its first delivery. A message
    that expired or was dropped between two attempts counts as acknowledged, and so does a dead
    letter: see `escapement dlq find TOPIC SUBSCRIPTION OFFSET`.
    """
)
@click.argument("topic")
@click.argument("id", required=False)
@output_option("table", "How to print the history.")
@broker_option
def show(topic: str, id: str | None, output: str, at_broker: Addresses) -> None:
    """Show when a message was published and is due, and its state for each subscription."""
    if id is None and "@" not in topic:
        raise click.UsageError("Name the message: give TOPIC and its offset, or TOPIC@OFFSET.")
    full, offset = topic_and_offset(topic) if id is None else topic_and_offset(id, topic)

    answer = ask_broker(at_broker, "messages.show", topic=full, offset=offset)
    if output == "json":
        print_json(answer | body(answer.pop("payload"), answer["size_bytes"]))
        return
    answer["payload"] = text(answer["payload"])
    print_record({name: value for name, value in answer.items() if name != "subscriptions"})
    click.echo()
    print_rows(answer["subscriptions"], _COLUMNS, "no subscriptions")
