"""`escapement read`: print a topic's messages by offset, without a subscription."""

from __future__ import annotations

import click

from escapement.cli.input.message_ids import offset_of
from escapement.cli.input.options import output_option
from escapement.cli.input.remote import broker_option, with_broker
from escapement.cli.output.line import plain, print_json, print_payload
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses

# The most messages that one request reads.
_PAGE_MESSAGES = 1000


@click.command(
    epilog="""\b
    Examples:
      escapement read orders
      escapement read shop/eu/orders --from 4711 --count 10 -o json

    Prints the messages in arrival order, each as it was published: reading the same range
    again gives the same messages. Ends with the last message that existed at the start. JSON
    is one object per line.
    """
)
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="ID",
    default="0",
    show_default=True,
    help="Message to begin with: TOPIC@OFFSET, or its offset.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@output_option("text", "Print only payloads (text), or whole messages (json).")
@broker_option
def read(topic: str, start: str, count: int | None, output: str, at_broker: Addresses) -> None:
    """Print the messages of TOPIC by offset, without consuming them."""
    first = offset_of(start, topic)

    async def work(broker: Broker) -> None:
        left, found = count, False
        most = _PAGE_MESSAGES if count is None else min(count, _PAGE_MESSAGES)
        async for page in broker.read(topic, first, page_messages=most):
            for message in page:
                found = True
                if output == "json":
                    print_json(plain(message) | {"published_ms": message.published_ms})
                else:
                    print_payload(message.payload)
                if left is not None:
                    left -= 1
                    if not left:
                        return
        if not found:
            click.echo(f"{topic} has no messages at offset {first} or later", err=True)

    with_broker(at_broker, work)
