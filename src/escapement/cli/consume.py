"""`escapement consume`: print delivered messages, and acknowledge, nack or release them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

import click

from escapement.cli.input.message_ids import position_of
from escapement.cli.input.options import kind_option, output_option
from escapement.cli.input.parameters import duration_ms, start_position
from escapement.cli.input.remote import broker_option, with_broker
from escapement.cli.output.line import plain, print_json, print_payload
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses
from escapement.client.consuming.batch import Message
from escapement.client.consuming.inbox import Inbox
from escapement.client.delivery_times import Where
from escapement.errors import AccessDenied, NotFound
from escapement.interruptible import until_interrupted

# The most messages buffered in this process. More would only keep them from other consumers.
_PERMITS: Final = 1000


def _key_range(text: str) -> tuple[int, int] | str:
    first, dash, last = text.partition("-")
    if dash and first.isdecimal() and last.isdecimal():
        return int(first), int(last)
    if text != "auto":
        raise click.BadParameter(f"{text!r} is neither FIRST-LAST nor auto.")
    return text


@click.command(
    epilog="""\b
    Examples:
      escapement consume orders billing
      escapement consume shop/eu/orders audit --from earliest --count 10 -o json
      escapement consume orders mirror --kind failover
      escapement consume orders billing --count 1 --then nack --again-in 5m

    Each message is acknowledged (or nacked, or released) after it is printed. Messages printed
    right before a crash may be delivered again. JSON is one object per line.
    """
)
@click.argument("topic")
@click.argument("subscription")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--from",
    "position",
    type=start_position,
    metavar="POSITION",
    default="latest",
    show_default=True,
    help="Where a new subscription begins: latest, earliest, an offset, a message id, or a time "
    "such as 2026-12-24T18:00Z.",
)
@kind_option
@click.option(
    "--keys",
    "key_range",
    type=_key_range,
    metavar="FIRST-LAST|auto",
    help="For shared subscriptions: only messages whose keys hash to these slots of 0-65535, or "
    "to a share assigned by the broker (auto). Messages without a key are delivered too.",
)
@click.option(
    "--then",
    type=click.Choice(["ack", "nack", "release"]),
    default="ack",
    show_default=True,
    help="What to do with a printed message: acknowledge it; fail it (redelivered after its "
    "back-off); or release it untried (redelivered at once).",
)
@click.option(
    "--again-in",
    "again_ms",
    type=duration_ms,
    metavar="DURATION",
    help="With --then nack or release: redeliver after this long instead.",
)
@output_option("text", "Print only payloads (text), or whole messages (json).")
@broker_option
def consume(
    topic: str,
    subscription: str,
    count: int | None,
    position: Where,
    kind: str,
    key_range: tuple[int, int] | str | None,
    then: str,
    again_ms: int | None,
    output: str,
    at_broker: Addresses,
) -> None:
    """Print the messages of SUBSCRIPTION on TOPIC as they come due.

    The topic and the subscription are created if they do not exist. A new subscription does not
    get messages that are due already, unless --from is given. Ctrl-C stops the command.
    """
    if again_ms is not None and then == "ack":
        raise click.UsageError("--again-in needs --then nack or --then release.")
    position_of(position, topic)  # checks it before connecting
    show = _show_json if output == "json" else _show_text
    delay = None if again_ms is None else timedelta(milliseconds=again_ms)

    async def print_all(inbox: Inbox) -> None:
        left = count
        async for message in inbox:
            # If printing fails, closing the inbox releases the message at once.
            show(message)
            if then == "ack":
                await message.ack()
            else:
                await (message.nack(delay) if then == "nack" else message.release(delay))
            if left is not None:
                left -= 1
                if not left:
                    return

    async def work(broker: Broker) -> None:
        created = await _created(broker, topic, subscription, position, kind)
        permits = _PERMITS if count is None else min(count, _PERMITS)
        async with broker.consumer(
            topic,
            subscription,
            kind=kind,
            position=position,
            permits=permits,
            key_range=key_range,
        ) as inbox:
            if created:
                click.echo(created, err=True)
            # After Ctrl-C the inbox is closed normally, which releases its messages at once.
            await until_interrupted(partial(print_all, inbox))

    with_broker(at_broker, work)


async def _created(
    broker: Broker, topic: str, subscription: str, position: Where, kind: str
) -> str:
    """Return what the command creates, perhaps by mistake, in words, or "".

    A new topic may be a typo. A new subscription may lack the messages that the user waits for.
    """
    named = f"subscription {subscription}"
    try:
        rows = await broker.admin("subscriptions.list", topic=topic)
    except NotFound:
        return f"created topic {topic} and {named}"
    except AccessDenied:
        return ""  # a role with consume alone may not list subscriptions
    if position != "latest" or any(row["subscription"] == subscription for row in rows):
        return ""
    left_out = "due" if kind == "shared" else "published"
    return (
        f"created {named}, without messages that were {left_out} before. To "
        "receive them too, use another subscription with --from earliest"
    )


def _show_text(message: Message) -> None:
    print_payload(message.payload)


def _show_json(message: Message) -> None:
    delivered = {"attempt": message.attempt, "redelivered": message.redelivered}
    print_json(plain(message) | delivered)
