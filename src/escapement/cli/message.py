"""`escapement message`: show single messages."""

from __future__ import annotations

from typing import Final

import click

from escapement.cli.input.options import output_option
from escapement.cli.input.remote import ask_broker, broker_option
from escapement.cli.output.line import body, print_json, text
from escapement.cli.output.table import print_record, print_rows

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

    ID is an offset. Instead of TOPIC and ID, an id as printed by `escapement produce` works too.

    The state of a message is to_be_fired (not yet due) or fired (due). Once every subscription
    is done with it, the state is acked, lapsed or cancelled. The table shows the message's state
    for each subscription.

    A lapsed message expired, or was dropped by a quota, before its first delivery. A message
    that expired or was dropped between two attempts counts as acknowledged, and so does a dead
    letter: see `escapement dlq list`.
    """
)
@click.argument("topic")
@click.argument("id", required=False, type=click.IntRange(min=0))
@output_option("table", "How to print the history.")
@broker_option
def show(topic: str, id: int | None, output: str, at_broker: tuple[str, int]) -> None:
    """Show when a message was published and is due, and its state for each subscription."""
    if id is None:
        topic, _, offset = topic.rpartition("@")
        if not topic or not offset.isascii() or not offset.isdigit():
            raise click.UsageError("Name the message: give TOPIC and its offset, or TOPIC@OFFSET.")
        id = int(offset)

    answer = ask_broker(at_broker, "messages.show", topic=topic, offset=id)
    if output == "json":
        print_json(answer | body(answer.pop("payload"), answer["size_bytes"]))
        return
    answer["payload"] = text(answer["payload"])
    print_record({name: value for name, value in answer.items() if name != "subscriptions"})
    click.echo()
    print_rows(answer["subscriptions"], _COLUMNS, "no subscriptions")
