"""`escapement peek`: show the pending messages of a topic, next due first."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Any, Final

import click
import trio

from escapement.cli.input.message_ids import offset_of
from escapement.cli.input.options import output_option
from escapement.cli.input.parameters import check_span, moment, name_and_value
from escapement.cli.input.remote import broker_option, with_broker
from escapement.cli.output.line import body, print_json, text
from escapement.cli.output.table import print_rows
from escapement.client.administration.peeking import Peeking, Upcoming
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses
from escapement.client.delivery_times import at_ms

# The time between two lines of progress.
_REPORT_S: Final = 1.0


@click.command(
    epilog="""\b
    Examples:
      escapement peek orders
      escapement peek shop/eu/orders --key order-7 -o json
      escapement peek orders --from 2026-12-24T00:00+01:00 --until 2026-12-25T00:00+01:00
      escapement peek orders --property source=till --count 100

    A message is pending until it is due and every shared subscription has acknowledged it.
    Shows the first 512 bytes of each payload.
    """
)
@click.argument("topic")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Most messages to show.",
)
@click.option(
    "--from",
    "due_from",
    type=moment,
    metavar="TIME",
    help="Only messages due at this time or later.",
)
@click.option(
    "--until", "due_until", type=moment, metavar="TIME", help="Only messages due before this time."
)
@click.option("--key", help="Only messages with this key.")
@click.option("--id", metavar="ID", help="Only this message: TOPIC@OFFSET, or its offset.")
@click.option(
    "--property",
    "properties",
    type=name_and_value,
    metavar="NAME=VALUE",
    multiple=True,
    help="Only messages with this property; if given several times, with all of them.",
)
@output_option("table", "How to print the messages.")
@broker_option
def peek(
    topic: str,
    count: int,
    due_from: datetime | None,
    due_until: datetime | None,
    key: str | None,
    id: str | None,
    properties: tuple[tuple[str, str], ...],
    output: str,
    at_broker: Addresses,
) -> None:
    """Show the pending messages of TOPIC, next due first, without consuming them."""
    check_span(due_from, due_until)
    offset = None if id is None else offset_of(id, topic)

    async def look(broker: Broker) -> list[Upcoming]:
        found = []
        peeking = broker.peek(
            topic,
            count=count,
            due_from=due_from,
            due_until=due_until,
            key=key,
            offset=offset,
            properties=dict(properties),
        )
        async with trio.open_nursery() as nursery:
            if sys.stderr.isatty():
                nursery.start_soon(_report, peeking)
            async for one in peeking:
                found.append(one)
            nursery.cancel_scope.cancel()
        return found

    found = with_broker(at_broker, look)
    if output == "json":
        print_json([_row(one) | body(one.payload, one.size_bytes) for one in found])
    else:
        rows = [_row(one) | {"payload": text(one.payload)} for one in found]
        columns = ("due_at_ms", "due_in_ms", "offset", "key", "size_bytes", "payload")
        print_rows(rows, columns, f"no matching message is pending on {topic}")


async def _report(peeking: Peeking) -> None:
    """Print regularly how many messages were examined: a rare match among millions takes time."""
    while True:
        await trio.sleep(_REPORT_S)
        click.echo(f"looked at {peeking.looked:,} messages", err=True)


def _row(one: Upcoming) -> dict[str, Any]:
    due_ms = at_ms(one.due_at)
    now_ms = int(time.time() * 1000)
    return {
        "offset": one.id.offset,
        "due_at_ms": due_ms,
        "due_in_ms": max(due_ms - now_ms, 0),
        "key": one.key,
        "properties": one.properties,
        "size_bytes": one.size_bytes,
    }
