"""`escapement produce`: publish messages from the command line, a file or a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from typing import BinaryIO, Final

import click
import trio

from escapement.cli.input.options import spread_option
from escapement.cli.input.parameters import duration_ms, moment, name_and_value
from escapement.cli.input.remote import broker_option, with_broker
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses
from escapement.client.producing.producer import Producer
from escapement.client.producing.receipt import Receipts
from escapement.client.producing.replace import Replace
from escapement.errors import LimitExceeded
from escapement.message import DEFAULT_PRIORITY, MAX_PRIORITY
from escapement.protocol.limits import MAX_FRAME_BYTES

# The time between two checks whether sent messages wait for something.
_WAIT_S: Final = 2.0
# The size of a read from a file or pipe: some thousand lines make a good batch.
_READ_BYTES: Final = 256 * 1024
_REPLACE_MODES: Final = ("latest", "first", "debounce")


@click.command(
    epilog="""\b
    Examples:
      escapement produce orders "pay me"
      escapement produce shop/eu/orders "remind me" --delay 3m --key order-7
      escapement produce orders a b c --delay 1h --spread 10m
      escapement produce carts "remind" --delay 1h --replace cart-7
      escapement produce orders "a gift" --at 2026-12-24T18:00+01:00 --property kind=gift
      tail -F events.log | escapement produce events --stdin

    Prints the id of each message, TOPIC@OFFSET, once it is durable. If the topic already has a
    message with the --dedup key, prints the id of that message, even if it was cancelled or
    delivered since: sending a cancelled message again does not restore it.

    With --replace-mode first, prints the id of the pending message if it was kept. What happened to
    a pending message with the --replace key is printed to standard error.
    """
)
@click.argument("topic")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option(
    "--delay",
    "delay_ms",
    type=duration_ms,
    metavar="DURATION",
    help="Deliver this long after the broker has the message: 500ms, 30s, 5m, 1h, 3d, 2w.",
)
@click.option(
    "--at",
    type=moment,
    metavar="TIME",
    help="Deliver at this time: ISO 8601 with an offset or Z. A past time means now.",
)
@spread_option
@click.option("--key", help="Key of the messages.")
@click.option(
    "--priority",
    type=click.IntRange(0, MAX_PRIORITY),
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="Shared subscriptions deliver due messages with a lower number first.",
)
@click.option(
    "--property",
    "properties",
    type=name_and_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of the messages; may be given several times.",
)
@click.option(
    "--dedup",
    metavar="KEY",
    help="Skip the message if the topic recently stored one with this key; one message only.",
)
@click.option(
    "--replace",
    metavar="KEY",
    help="Replace a pending message that was sent with this replace key.",
)
@click.option(
    "--replace-mode",
    type=click.Choice(_REPLACE_MODES),
    default=_REPLACE_MODES[0],
    show_default=True,
    help="Replace the pending message, keep it, or replace it and put off the delivery.",
)
@click.option(
    "--max-wait",
    "max_wait_ms",
    type=duration_ms,
    metavar="DURATION",
    help="With debounce: deliver at the latest this long after the first message.",
)
@click.option(
    "--group", metavar="NAME", help="Group of the messages; see `escapement admin groups`."
)
@click.option("--stdin", is_flag=True, help="Publish each line of standard input.")
@click.option(
    "--file",
    type=click.File("rb"),
    metavar="FILE",
    help="Publish each line of a file; - is standard input.",
)
@broker_option
def produce(
    topic: str,
    messages: tuple[str, ...],
    delay_ms: int | None,
    at: datetime | None,
    spread_ms: int | None,
    key: str | None,
    priority: int,
    properties: tuple[tuple[str, str], ...],
    dedup: str | None,
    replace: str | None,
    replace_mode: str,
    max_wait_ms: int | None,
    group: str | None,
    stdin: bool,
    file: BinaryIO | None,
    at_broker: Addresses,
) -> None:
    """Publish messages to TOPIC, now or for later.

    A topic is tenant/namespace/name; a name alone means public/default/name. It is
    created on first use. All messages of one command have the same time, key,
    priority, properties and group. --spread scatters their times.
    """
    if delay_ms is not None and at is not None:
        raise click.UsageError("Give --delay or --at, not both.")
    if bool(messages) + stdin + (file is not None) != 1:
        raise click.UsageError("Give messages as arguments, or --stdin, or --file.")
    if dedup is not None and len(messages) != 1:
        raise click.UsageError("--dedup is for a single message: give it as an argument.")
    replacing = _replacing(replace, replace_mode, max_wait_ms)
    source = sys.stdin.buffer if stdin else file
    delay = None if delay_ms is None else (delay_ms, "ms")

    async def send_all(producer: Producer, values: list[bytes]) -> None:
        receipts = await producer.send_many(
            values,
            delay=delay,
            at=at,
            keys=None if key is None else [key] * len(values),
            properties=[dict(properties)] * len(values) if properties else None,
            priorities=None if priority == DEFAULT_PRIORITY else priority,
            dedup=None if dedup is None else [dedup],
            groups=group,
            spread=None if spread_ms is None else (spread_ms, "ms"),
            replace=None if replacing is None else [replacing] * len(values),
        )
        _print(receipts)

    async def work(broker: Broker) -> None:
        async with await broker.producer(topic) as producer, trio.open_nursery() as nursery:
            nursery.start_soon(say_why, producer)
            if source is None:
                await send_all(producer, [os.fsencode(message) for message in messages])
            else:
                async for lines in _lines(source):
                    await send_all(producer, lines)
            nursery.cancel_scope.cancel()

    with_broker(at_broker, work)


def _replacing(key: str | None, mode: str, max_wait_ms: int | None) -> Replace | None:
    """Return what the options about a replace key say."""
    if (max_wait_ms is not None) != (mode == "debounce"):
        raise click.UsageError("Give --max-wait with --replace-mode debounce.")
    if key is None:
        if mode != _REPLACE_MODES[0]:
            raise click.UsageError("Give --replace with --replace-mode.")
        return None
    if max_wait_ms is not None:
        return Replace.debounce(key, max_wait=(max_wait_ms, "ms"))
    return Replace.first(key) if mode == "first" else Replace.latest(key)


async def say_why(producer: Producer) -> None:
    """Print to stderr what sent messages wait for, once for each reason."""
    said = None
    while True:
        await trio.sleep(_WAIT_S)
        why = producer.waits_for
        if why is not None and why.code != said:
            click.echo(f"waiting: {why}", err=True)
        said = None if why is None else why.code


async def _lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield lists of the lines of ``source`` as they arrive, without line ends."""
    begun = b""
    # Read the file descriptor: after an interrupt, a buffered reader would stay locked.
    number = source.fileno()
    while piece := await trio.to_thread.run_sync(
        os.read, number, _READ_BYTES, abandon_on_cancel=True
    ):
        *lines, begun = (begun + piece).split(b"\n")
        if lines:
            yield lines
        if len(begun) > MAX_FRAME_BYTES:
            raise LimitExceeded(f"a line is longer than {MAX_FRAME_BYTES} bytes")
    if begun:
        yield [begun]


def _print(receipts: Receipts) -> None:
    for receipt in receipts:
        click.echo(str(receipt.id))
        if receipt.duplicate:
            click.echo(f"duplicate of {receipt.id}: nothing was stored", err=True)
        elif receipt.kept:
            click.echo(f"kept {receipt.id}: the new message was dropped", err=True)
        elif receipt.replaced is not None:
            click.echo(f"replaced {receipt.replaced}", err=True)
