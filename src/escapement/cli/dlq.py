"""`escapement dlq`: the dead letters of a subscription, looked at, sent back, thrown away."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from escapement.cli.options import output_option
from escapement.cli.remote import broker_option, with_broker
from escapement.cli.table import print_record, print_rows
from escapement.client.broker import Broker

_COLUMNS: Final = (
    "offset",
    "died_at_ms",
    "reason",
    "attempts",
    "original_offset",
    "original_due_at_ms",
    "key",
    "size_bytes",
    "payload",
)
# As many as the broker moves at once.
_STEP: Final = 10_000

_topic = click.argument("topic")
_subscription = click.argument("subscription")
_offsets = click.option(
    "--offset",
    "offsets",
    type=click.IntRange(0),
    multiple=True,
    help="Only this one, by its place in the dead-letter topic; may be given again.",
)
_output = output_option("table", "How to print the answer.")


@click.group()
def dlq() -> None:
    """Look after messages that were tried too often.

    A subscription with a bound on deliveries (escapement admin subscriptions update TOPIC
    SUBSCRIPTION --max-deliveries 10) puts a copy of what has failed so often into its
    dead-letter topic.
    """


@dlq.command("list", epilog="\b\nExamples:\n  escapement dlq list orders billing --count 100")
@click.option(
    "--count",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many.",
)
@_topic
@_subscription
@_output
@broker_option
def list_letters(
    topic: str, subscription: str, count: int, output: str, at_broker: tuple[str, int]
) -> None:
    """List the dead letters of a subscription, those first that died first."""

    async def ask(broker: Broker) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await broker.admin(
            "dlq.list", topic=topic, subscription=subscription, count=count
        )
        return found

    rows = [_readable(row) for row in with_broker(at_broker, ask)]
    if output == "json":
        click.echo(json.dumps(rows))
    else:
        print_rows(rows, _COLUMNS, f"{subscription} of {topic} has no dead letters")


@dlq.command(epilog="\b\nExamples:\n  escapement dlq show orders billing 17")
@_topic
@_subscription
@click.argument("offset", type=click.IntRange(0))
@_output
@broker_option
def show(
    topic: str, subscription: str, offset: int, output: str, at_broker: tuple[str, int]
) -> None:
    """Show one dead letter whole, by its OFFSET in the dead-letter topic."""

    async def ask(broker: Broker) -> dict[str, Any]:
        found: dict[str, Any] = await broker.admin(
            "dlq.show", topic=topic, subscription=subscription, offset=offset
        )
        return found

    row = _readable(with_broker(at_broker, ask))
    if output == "json":
        click.echo(json.dumps(row))
    else:
        print_record(row)


@dlq.command(
    epilog="\b\nExamples:\n  escapement dlq redrive orders billing\n"
    "  escapement dlq redrive orders billing --offset 17"
)
@_topic
@_subscription
@_offsets
@broker_option
def redrive(
    topic: str, subscription: str, offsets: tuple[int, ...], at_broker: tuple[str, int]
) -> None:
    """Send dead letters back to TOPIC, as they were; each exactly once."""
    moved = _move(at_broker, "redrive", "redriven", topic, subscription, offsets)
    click.echo(f"{moved} sent back to {topic}")


@dlq.command(epilog="\b\nExamples:\n  escapement dlq purge orders billing")
@_topic
@_subscription
@_offsets
@broker_option
def purge(
    topic: str, subscription: str, offsets: tuple[int, ...], at_broker: tuple[str, int]
) -> None:
    """Throw dead letters away."""
    moved = _move(at_broker, "purge", "purged", topic, subscription, offsets)
    click.echo(f"{moved} thrown away")


def _move(
    at: tuple[str, int],
    verb: str,
    answer: str,
    topic: str,
    subscription: str,
    offsets: tuple[int, ...],
) -> int:
    """Carry out a verb, in steps; returns how many letters it moved."""

    async def ask(broker: Broker) -> int:
        moved, step = 0, _STEP
        while step == _STEP:
            said = await broker.admin(
                f"dlq.{verb}",
                topic=topic,
                subscription=subscription,
                offsets=list(offsets) or None,
                count=_STEP,
            )
            step = said[answer]
            moved += step
        return moved

    return with_broker(at, ask)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    text = row["payload"].decode("utf-8", "backslashreplace")
    readable = row | {"payload": text}
    if "properties" in row:
        readable["properties"] = json.loads(json.dumps(row["properties"], default=repr))
    return readable
