"""`escapement cancel`, `reschedule`, `run-now`: change one's mind about what is published."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import click

from escapement.cli.parameters import duration_ms, moment
from escapement.cli.remote import broker_option, with_broker
from escapement.cli.table import print_rows
from escapement.client.broker import Broker
from escapement.client.outcome import Outcome, Outcomes
from escapement.errors import Conflict
from escapement.names import TopicName
from escapement.protocol.fate import Fate

_ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID...")
_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print what became of them.",
)
_WORDS: Final = {
    Fate.UNKNOWN: "unknown",
    Fate.DELIVERED: "delivered",
    Fate.CANCELLED: "cancelled",
}


@click.command(
    epilog="""\b
    Examples:
      escapement cancel orders 17
      escapement cancel shop/eu/orders 17 18 shop/eu/orders@19 -o json
      jq .offset due.json | escapement cancel orders -

    An ID is what `produce` printed, or the offset in it; `-` reads them from standard input.
    Of each message it is said whether it is cancelled, delivered (every subscription has been
    handed it already) or unknown, and which subscriptions have been handed it. The exit code
    is 1 if any of them was not cancelled.
    """
)
@click.argument("topic")
@_ids_argument
@_output_option
@broker_option
def cancel(topic: str, ids: Sequence[str], output: str, at_broker: tuple[str, int]) -> None:
    """Cancel messages of TOPIC for every subscription that has not been handed them."""
    offsets = _offsets(topic, ids)

    async def ask(broker: Broker) -> Outcomes:
        return await broker.cancel(offsets, topic=topic)

    _report(with_broker(at_broker, ask), "cancelled", output)


@click.command(
    epilog="""\b
    Examples:
      escapement reschedule orders 17 --delay 3h
      escapement reschedule orders 17 18 --at 2026-12-24T18:00+01:00

    As `escapement cancel`, of which the messages are handed out at another time instead.
    """
)
@click.argument("topic")
@_ids_argument
@click.option("--delay", "delay_ms", type=duration_ms, help="In how long they are due: 5m, 3d.")
@click.option("--at", type=moment, metavar="TIME", help="When: ISO 8601 with a UTC offset.")
@_output_option
@broker_option
def reschedule(
    topic: str,
    ids: Sequence[str],
    delay_ms: int | None,
    at: datetime | None,
    output: str,
    at_broker: tuple[str, int],
) -> None:
    """Give messages of TOPIC another time, for subscriptions that have not been handed them."""
    if (delay_ms is None) == (at is None):
        raise click.UsageError("Give --delay or --at.")
    offsets = _offsets(topic, ids)
    delay = None if delay_ms is None else (delay_ms, "ms")

    async def ask(broker: Broker) -> Outcomes:
        return await broker.reschedule(offsets, topic=topic, delay=delay, at=at)

    _report(with_broker(at_broker, ask), "rescheduled", output)


@click.command(
    epilog="""\b
    Example:
      escapement run-now orders 17

    As `escapement reschedule`, to now.
    """
)
@click.argument("topic")
@_ids_argument
@_output_option
@broker_option
def run_now(topic: str, ids: Sequence[str], output: str, at_broker: tuple[str, int]) -> None:
    """Have messages of TOPIC due now."""
    offsets = _offsets(topic, ids)

    async def ask(broker: Broker) -> Outcomes:
        return await broker.run_now(offsets, topic=topic)

    _report(with_broker(at_broker, ask), "rescheduled", output)


def _report(outcomes: Outcomes, done: str, output: str) -> None:
    rows = [_row(outcome, done) for outcome in outcomes]
    if output == "json":
        click.echo(json.dumps(rows))
    else:
        shown = [{**row, "handed": ", ".join(row["handed"])} for row in rows]
        print_rows(shown, ("id", "fate", "handed"), "no messages were named")
    left = len(outcomes) - int(outcomes.done.sum())
    if left:
        raise Conflict(f"{left} of {len(outcomes)} messages were not {done}")


def _row(outcome: Outcome, done: str) -> dict[str, Any]:
    return {
        "id": str(outcome.id),
        "fate": _WORDS.get(outcome.fate, done),
        "handed": list(outcome.handed),
    }


def _offsets(topic: str, ids: Sequence[str]) -> list[int]:
    full = TopicName.parse(topic).full
    words = [word for id in ids for word in (_standard_input() if id == "-" else [id])]
    return [_offset(full, word) for word in words]


def _standard_input() -> list[str]:
    return sys.stdin.read().split()


def _offset(topic: str, word: str) -> int:
    of, separator, number = word.rpartition("@")
    if separator and TopicName.parse(of).full != topic:
        raise click.BadParameter(f"{word} is a message of another topic than {topic}.")
    if not number.isdecimal() or len(number) > 18:
        raise click.BadParameter(f"{word!r} is no message: write 17 or {topic}@17.")
    return int(number)
