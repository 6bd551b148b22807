"""`escapement stream`: print the rows of a message table as they come due."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

import click
import numpy as np

from escapement.cli.input.remote import broker_option, with_broker
from escapement.cli.input.stream_statement import StreamStatement, stream_statement
from escapement.cli.input.table_topics import topic_of_table
from escapement.cli.output.rows import RowForm, RowPrinter
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses
from escapement.client.consuming.inbox import Inbox
from escapement.errors import InvalidRequest
from escapement.interruptible import until_interrupted

# The subscription of every message table.
_SUBSCRIPTION: Final = "table"
# The most rows buffered in this process. More would only keep them from other consumers.
_PERMITS: Final = 1000
# The most rows that are released when the command ends. The broker sends older ones again when
# their ack deadline has passed.
_MOST_RELEASED: Final = 100_000


@click.command(
    epilog="""\b
    Examples:
      escapement stream "STREAM * FROM shop.my_message"
      escapement stream "STREAM id, message FROM shop.my_message" --count 10 --format csv
      escapement stream "STREAM * FROM shop.my_message" --ack --format json

    Other consumers do not get a row while this command has it. Without --ack, the broker sends a
    row again after its back-off, as it does for every consumer that does not acknowledge. When the
    command ends, its rows are released: they go to other consumers at once.
    """
)
@click.argument("statement", type=stream_statement)
@click.option("--ack", is_flag=True, help="Acknowledge each row after it is printed.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many rows.")
@click.option(
    "-o",
    "--output",
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How to print rows.",
)
@broker_option
def stream(
    statement: StreamStatement,
    ack: bool,
    count: int | None,
    form: RowForm,
    at_broker: Addresses,
) -> None:
    """Print the rows of a message table as they come due.

    STATEMENT is a STREAM statement, such as "STREAM * FROM shop.my_message". Ctrl-C stops the
    command.
    """
    printer = RowPrinter(form, statement.columns, statement.name)

    async def work(broker: Broker) -> None:
        permits = _PERMITS if count is None else min(count, _PERMITS)
        topic = await _topic_of(broker, statement)
        async with broker.consumer(topic, _SUBSCRIPTION, permits=permits) as inbox:
            # After Ctrl-C the inbox is closed normally, which sends the acknowledgements.
            await until_interrupted(partial(print_rows, inbox, printer, count, ack))

    with_broker(at_broker, work)


async def _topic_of(broker: Broker, statement: StreamStatement) -> str:
    if statement.database is not None:
        return f"table://{statement.database}/{statement.table}"
    return await topic_of_table(broker, statement.table)


async def print_rows(inbox: Inbox, printer: RowPrinter, count: int | None, ack: bool) -> None:
    """Print rows until ``count`` are printed, and release those that are not acknowledged.

    Raises:
      InvalidRequest: if the messages are not rows of a message table.
      NotFound: if the table has no column of a name to print.
    """
    held: deque[int] = deque(maxlen=_MOST_RELEASED)
    left = count
    try:
        # The broker tells the columns before it answers the subscription.
        if inbox.fields is not None:
            printer.check(inbox.fields)
        async for batch in inbox.batches():
            held.extend(batch.offsets.tolist())
            fields = batch.messages.fields
            if fields is None:
                raise InvalidRequest(f"Topic {inbox.topic} is not a message table.")
            some = batch.messages if left is None else batch.messages.part(0, min(left, len(batch)))
            printer.print(fields, some.payloads.to_list())
            if ack:
                await inbox.ack(batch.offsets[: len(some)])
                held.clear()
                held.extend(batch.offsets[len(some) :].tolist())
            if left is not None:
                left -= len(some)
                if not left:
                    return
    finally:
        # A row that came again is in ``held`` twice.
        await inbox.release(np.unique(np.array(held, np.int64)))
