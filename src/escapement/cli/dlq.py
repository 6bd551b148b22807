"""`escapement dlq`: list, find, show, redrive and purge the dead letters of a subscription."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final

import click

from escapement.cli.input.message_ids import offset_of, topic_and_offset
from escapement.cli.input.options import output_option, spread_option
from escapement.cli.input.remote import Command, ask_broker, broker_option, with_broker
from escapement.cli.output.line import body, print_json, text
from escapement.cli.output.table import print_record, print_rows
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses
from escapement.errors import NotFound

_COLUMNS: Final = (
    "offset",
    "died_at_ms",
    "reason",
    "detail",
    "attempts",
    "original_offset",
    "original_due_at_ms",
    "key",
    "size_bytes",
    "payload",
)
# The most dead letters that the broker moves in one request.
_STEP: Final = 10_000

_topic = click.argument("topic")
_subscription = click.argument("subscription")
_lie_in = click.option(
    "--in",
    "lie_in",
    metavar="TOPIC",
    help="Dead-letter topic, if it is not the one in the subscription's policy.",
)
_offsets = click.option(
    "--offset",
    "offsets",
    metavar="ID",
    multiple=True,
    help="Only this dead letter: DEAD_LETTER_TOPIC@OFFSET, or its offset; may be given several "
    "times.",
)
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Print how many dead letters match; change nothing."
)
_output = output_option("table", "How to print the answer.")


@click.group()
def dlq() -> None:
    """List, find, redrive and purge dead letters.

    A subscription with a limit on deliveries (escapement admin subscriptions update TOPIC
    SUBSCRIPTION --max-deliveries 10) copies each message that fails its last delivery to the
    subscription's dead-letter topic. Use --in for the dead letters of a deleted subscription, or
    of a subscription that now has another dead-letter topic.
    """


@dlq.command("list", epilog="\b\nExamples:\n  escapement dlq list orders billing --count 100")
@click.option(
    "--count",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Most dead letters to list.",
)
@_topic
@_subscription
@_lie_in
@_output
@broker_option
def list_dead_letters(
    topic: str,
    subscription: str,
    count: int,
    lie_in: str | None,
    output: str,
    at_broker: Addresses,
) -> None:
    """List the dead letters of a subscription, the oldest first.

    Rescheduled dead letters are listed in the order of their new times.
    """

    rows = ask_broker(
        at_broker,
        "dlq.list",
        topic=topic,
        subscription=subscription,
        dead_letter_topic=lie_in,
        count=count,
    )
    if output == "json":
        print_json([_plain(row) for row in rows])
    else:
        _print_table(rows, f"{subscription} of {topic} has no dead letters")


@dlq.command(
    epilog="\b\nExamples:\n  escapement dlq find orders billing 4711\n"
    "  escapement dlq find orders billing shop/eu/orders@4711"
)
@_topic
@_subscription
@click.argument("id")
@_lie_in
@_output
@broker_option
def find(
    topic: str,
    subscription: str,
    id: str,
    lie_in: str | None,
    output: str,
    at_broker: Addresses,
) -> None:
    """Find the dead letter that a message of TOPIC has become.

    ID is TOPIC@OFFSET, or the offset in TOPIC alone. There are several dead letters if the
    subscription was moved back by a seek, and gave the message up again.
    """
    offset = offset_of(id, topic)

    async def ask(broker: Broker) -> list[dict[str, Any]]:
        rows, after = [], None
        while True:
            page = await broker.admin(
                "dlq.find",
                topic=topic,
                subscription=subscription,
                dead_letter_topic=lie_in,
                offset=offset,
                after=after,
            )
            rows += page["dead_letters"]
            after = page["next"]
            if after is None:
                return rows

    rows = with_broker(at_broker, ask)
    if output == "json":
        print_json([_plain(row) for row in rows])
    else:
        _print_table(rows, f"{subscription} of {topic} has no dead letter of message {offset}")


@dlq.command(epilog="\b\nExamples:\n  escapement dlq show orders billing 17")
@_topic
@_subscription
@click.argument("id")
@_lie_in
@_output
@broker_option
def show(
    topic: str,
    subscription: str,
    id: str,
    lie_in: str | None,
    output: str,
    at_broker: Addresses,
) -> None:
    """Show one dead letter in full.

    ID is DEAD_LETTER_TOPIC@OFFSET, or the offset in the dead-letter topic alone.
    """
    (offset,), lie_in = _named([id], lie_in)
    row = ask_broker(
        at_broker,
        "dlq.show",
        topic=topic,
        subscription=subscription,
        dead_letter_topic=lie_in,
        offset=offset,
    )
    if output == "json":
        print_json(_plain(row))
    else:
        print_record(row | {"payload": text(row["payload"])})


def _moving(command: Command) -> Command:
    """Add arguments to ``command`` that select dead letters. It gets them as ``dead_letters``."""

    @wraps(command)
    def wrapped(
        topic: str,
        subscription: str,
        offsets: tuple[str, ...],
        lie_in: str | None,
        dry_run: bool,
        **given: Any,
    ) -> Any:
        only, lie_in = _named(offsets, lie_in)
        return command(
            dead_letters=_DeadLetters(topic, subscription, lie_in, only, dry_run), **given
        )

    decorated: Any = wrapped
    for option in (broker_option, _output, _dry_run, _lie_in, _offsets, _subscription, _topic):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _DeadLetters:
    """The dead letters of a subscription that a command changes: those at ``offsets``, or all."""

    topic: str
    subscription: str
    lie_in: str | None
    offsets: tuple[int, ...]
    dry_run: bool

    @property
    def named(self) -> dict[str, Any]:
        """The arguments that select these dead letters in the broker's admin verbs."""
        return {
            "topic": self.topic,
            "subscription": self.subscription,
            "dead_letter_topic": self.lie_in,
            "offsets": list(self.offsets) or None,
            "count": _STEP,
        }


@dlq.command(
    epilog="\b\nExamples:\n  escapement dlq redrive orders billing --dry-run\n"
    "  escapement dlq redrive orders billing\n"
    "  escapement dlq redrive orders billing --offset 17\n"
    "  escapement dlq redrive orders billing --spread 10m\n"
    "  escapement dlq redrive orders billing --in orders-billing-DLQ"
)
@_moving
@spread_option
def redrive(
    dead_letters: _DeadLetters, spread_ms: int | None, output: str, at_broker: Addresses
) -> None:
    """Move dead letters back to TOPIC, unchanged and each exactly once.

    The exit code is 1 if a dead letter named by --offset does not exist.
    """
    _move(
        at_broker,
        dead_letters,
        output,
        "redrive",
        "redriven",
        f"moved back to {dead_letters.topic}",
        spread_ms=spread_ms,
    )


@dlq.command(epilog="\b\nExamples:\n  escapement dlq purge orders billing")
@_moving
def purge(dead_letters: _DeadLetters, output: str, at_broker: Addresses) -> None:
    """Delete dead letters.

    The exit code is 1 if a dead letter named by --offset does not exist.
    """
    _move(at_broker, dead_letters, output, "purge", "purged", "deleted")


def _move(
    at: Addresses,
    dead_letters: _DeadLetters,
    output: str,
    verb: str,
    answer: str,
    done: str,
    **options: Any,
) -> None:
    """Redrive or purge dead letters in steps, or only count them, and print how many there were.

    Args:
      verb: ``redrive`` or ``purge``.
      answer: the name of the number in the broker's answer and in the JSON output.
      done: what happened to the dead letters, in words.
      options: further arguments of the verb.
    """

    async def ask(broker: Broker) -> int:
        moved, step = 0, _STEP
        while step == _STEP:
            said = await broker.admin(f"dlq.{verb}", **dead_letters.named, **options)
            step = said[answer]
            moved += step
            if step == _STEP:
                click.echo(f"{moved:,} {done} so far", err=True)
        return moved

    if dead_letters.dry_run:
        answer, done = f"would_be_{answer}", f"would be {done}"
    work = partial(_count, dead_letters=dead_letters) if dead_letters.dry_run else ask
    moved = with_broker(at, work)
    missing = len(set(dead_letters.offsets)) - moved if dead_letters.offsets else 0
    if moved or not missing:
        click.echo(json.dumps({answer: moved}) if output == "json" else f"{moved:,} {done}")
    if missing:
        raise NotFound(
            f"{missing} of the dead letters named do not exist: subscription "
            f"{dead_letters.subscription} of {dead_letters.topic} has none at these offsets"
        )


def _named(ids: Sequence[str], lie_in: str | None) -> tuple[tuple[int, ...], str | None]:
    """Return the offsets of dead letters, and the topic that their ids or ``--in`` name, if any."""
    for id in ids:
        if "@" in id:
            lie_in, _ = topic_and_offset(id, lie_in)
    return tuple(offset_of(id, lie_in or "TOPIC") for id in ids), lie_in


async def _count(broker: Broker, dead_letters: _DeadLetters) -> int:
    counted, after = 0, None
    while True:
        page = await broker.admin("dlq.count", **dead_letters.named, after=after)
        counted += int(page["dead_letters"])
        after = page["next"]
        if after is None:
            return counted


def _print_table(rows: Sequence[dict[str, Any]], none: str) -> None:
    rows = [row | {"payload": text(row["payload"])} for row in rows]
    print_rows(rows, _COLUMNS, none)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    described = {name: value for name, value in row.items() if name != "payload"}
    return described | body(row["payload"], row["size_bytes"])
