"""`escapement cancel`: change one's mind about messages that are published."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

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
_WORDS: Final = {Fate.UNKNOWN: "unknown", Fate.DELIVERED: "delivered"}


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
