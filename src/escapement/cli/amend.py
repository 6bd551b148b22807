"""`escapement cancel`, `reschedule` and `run-now`: change messages already published.

The messages are *selected* by id, by dedup key, or by filters such as ``--key``. The outcome of
each message is one of those in ``AmendStatus``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, Final

import click
import numpy as np

from escapement.cli.input.filters import Filters, filter_options
from escapement.cli.input.message_ids import offset_of
from escapement.cli.input.options import output_option, spread_option
from escapement.cli.input.parameters import duration_ms, moment
from escapement.cli.input.remote import Command, broker_option, with_broker
from escapement.cli.output.table import counted, print_rows
from escapement.client.administration.outcome import Outcome, Outcomes
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses
from escapement.client.selection import Selection
from escapement.errors import Conflict, NotFound
from escapement.names import TopicName
from escapement.protocol.amend_status import AmendStatus

_ids_argument = click.argument("ids", nargs=-1, metavar="[ID...]")
_dedup_option = click.option(
    "--dedup",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Dedup key of a message, instead of an ID; may be given several times.",
)
_output_option = output_option("table", "How to print the outcome.")
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print how many messages would be tried; change nothing."
)
# The outcomes of messages that were not changed, in words.
_WORDS: Final = {
    AmendStatus.UNKNOWN: "unknown",
    AmendStatus.DELIVERED: "delivered",
    AmendStatus.CANCELLED: "cancelled",
    AmendStatus.OVER: "over",
}


def _which_option(command: Command) -> Command:
    """Add arguments to ``command`` that select messages. It gets them as ``which``."""

    @wraps(command)
    def wrapped(
        ids: Sequence[str], keys: Sequence[str], filters: Filters, dry_run: bool, **given: Any
    ) -> Any:
        if bool(ids) + bool(keys) + filters.given != 1:
            raise click.UsageError(
                "Name messages in one way: by ID, or by --dedup, or by --from, --until, --key and "
                "--property, or --all."
            )
        return command(which=_Which(ids, keys, filters, dry_run), **given)

    decorated: Any = wrapped
    for option in (_dry_run_option, filter_options, _dedup_option, _ids_argument):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Which:
    """A selection of messages of a topic: by id, by dedup key, or by filters."""

    ids: Sequence[str]
    keys: Sequence[str]
    filters: Filters
    dry_run: bool

    @property
    def by_name(self) -> bool:
        """Whether the messages are selected one by one, by id or by dedup key."""
        return bool(self.ids or self.keys)

    async def find(self, broker: Broker, topic: str, ids: Sequence[int]) -> Selection:
        """Return the selected messages of ``topic``. Filters select messages that are pending now.

        Args:
          ids: the offsets in ``self.ids``.

        Raises:
          NotFound: if one of the dedup keys belongs to no message.
        """
        if self.ids:
            return Selection(TopicName.parse(topic).full, np.array(ids, np.int64))
        if self.keys:
            found = await broker.find(topic, self.keys)
            for key, id in zip(self.keys, found, strict=True):
                if id is None:
                    raise NotFound(
                        f"{topic} has no message with the dedup key {key!r} in its dedup window"
                    )
            offsets = np.array([id.offset for id in found if id is not None], np.int64)
            return Selection(TopicName.parse(topic).full, offsets)
        return await broker.select(
            topic,
            **self.filters.conditions(),
            progress=lambda count: click.echo(f"{count:,} messages found so far", err=True),
        )


def _amend(
    topic: str,
    which: _Which,
    output: str,
    at_broker: Addresses,
    done: str,
    act: Callable[[Broker, Selection], Awaitable[Outcomes]],
) -> None:
    """Find the selected messages, change them a part at a time, and print the outcomes.

    Args:
      done: the outcome of a message that was changed, in words.
      act: the request that changes messages, made for each part.
    """
    ids = _offsets(topic, which.ids)  # before connecting; an id of `-` reads standard input

    async def work(broker: Broker) -> Outcomes | int:
        found = await which.find(broker, topic, ids)
        if which.dry_run:
            return len(found)
        outcomes = []
        for part in found.parts():
            outcomes.append(await act(broker, part))
            tried = sum(map(len, outcomes))
            if len(found) > len(part):
                click.echo(f"{tried:,} of {len(found):,} messages", err=True)
        return Outcomes.concat(found.topic, outcomes)

    result = with_broker(at_broker, work)
    if isinstance(result, int):
        tried = json.dumps({"would_be_tried": result})
        click.echo(tried if output == "json" else f"{counted(result, 'message')} would be tried")
    elif which.by_name:
        _report(result, done, output)
    else:
        _report_counts(result, done, output)


def _report_counts(outcomes: Outcomes, done: str, output: str) -> None:
    counts = Counter(outcomes.statuses.tolist())
    row = {done: counts.pop(AmendStatus.DONE, 0)}
    row |= {_WORDS[AmendStatus(status)]: count for status, count in sorted(counts.items())}
    if output == "json":
        click.echo(json.dumps(row))
    else:
        click.echo(", ".join(f"{count:,} {word}" for word, count in row.items()))


@click.command(
    epilog="""\b
    Examples:
      escapement cancel orders 17
      escapement cancel shop/eu/orders 17 18 shop/eu/orders@19 -o json
      escapement cancel orders --dedup order-7
      jq .offset due.json | escapement cancel orders -
      escapement cancel orders --key order-7 --dry-run
      escapement cancel orders --property source=till
      escapement cancel orders --from 2026-12-24T00:00Z --until 2026-12-25T00:00Z

    An ID is TOPIC@OFFSET, as printed by `escapement produce`, or the offset alone; `-` reads IDs
    from standard input.

    For each message, prints the subscriptions it was delivered to, and the outcome: cancelled;
    delivered (to every subscription already); over (it has expired, was dropped, or is no
    longer in the log); or unknown (no such message). The exit code is 1 if any message was not
    cancelled.

    Filters select the messages that are pending when the command begins. Then it prints how
    many messages had each outcome.
    """
)
@click.argument("topic")
@_output_option
@broker_option
@_which_option
def cancel(topic: str, which: _Which, output: str, at_broker: Addresses) -> None:
    """Cancel messages of TOPIC for each subscription they were not delivered to."""
    _amend(topic, which, output, at_broker, "cancelled", lambda broker, part: broker.cancel(part))


@click.command(
    epilog="""\b
    Examples:
      escapement reschedule orders 17 --delay 3h
      escapement reschedule orders 17 18 --at 2026-12-24T18:00+01:00
      escapement reschedule orders --key order-7 --delay 1h --spread 10m

    Selects messages and prints outcomes like `escapement cancel`.
    """
)
@click.argument("topic")
@click.option(
    "--delay",
    "delay_ms",
    type=duration_ms,
    metavar="DURATION",
    help="Make the messages due this long from now: 5m, 3d.",
)
@click.option(
    "--at",
    type=moment,
    metavar="TIME",
    help="Make the messages due at this time: ISO 8601 with an offset or Z.",
)
@spread_option
@_output_option
@broker_option
@_which_option
def reschedule(
    topic: str,
    which: _Which,
    delay_ms: int | None,
    at: datetime | None,
    spread_ms: int | None,
    output: str,
    at_broker: Addresses,
) -> None:
    """Change the due time of messages of TOPIC, for subscriptions they were not delivered to."""
    if (delay_ms is None) == (at is None):
        raise click.UsageError("Give either --delay or --at.")
    delay = None if delay_ms is None else (delay_ms, "ms")
    spread = None if spread_ms is None else (spread_ms, "ms")

    def act(broker: Broker, part: Selection) -> Awaitable[Outcomes]:
        return broker.reschedule(part, delay=delay, at=at, spread=spread)

    _amend(topic, which, output, at_broker, "rescheduled", act)


@click.command(
    epilog="""\b
    Examples:
      escapement run-now orders 17
      escapement run-now orders --all --spread 10m

    Selects messages and prints outcomes like `escapement cancel`.
    """
)
@click.argument("topic")
@spread_option
@_output_option
@broker_option
@_which_option
def run_now(
    topic: str, which: _Which, spread_ms: int | None, output: str, at_broker: Addresses
) -> None:
    """Make messages of TOPIC due now, for subscriptions they were not delivered to."""
    spread = None if spread_ms is None else (spread_ms, "ms")

    def act(broker: Broker, part: Selection) -> Awaitable[Outcomes]:
        return broker.run_now(part, spread=spread)

    _amend(topic, which, output, at_broker, "rescheduled", act)


def _report(outcomes: Outcomes, done: str, output: str) -> None:
    rows = [_row(outcome, done) for outcome in outcomes]
    if output == "json":
        click.echo(json.dumps(rows))
    else:
        table_rows = [{**row, "handed": ", ".join(row["handed"])} for row in rows]
        print_rows(table_rows, ("id", "status", "handed"), "no messages were named")
    left = len(outcomes) - int(outcomes.done.sum())
    if left:
        raise Conflict(f"not {done}: {left} of {counted(len(outcomes), 'message')}")


def _row(outcome: Outcome, done: str) -> dict[str, Any]:
    return {
        "id": str(outcome.id),
        "status": _WORDS.get(outcome.status, done),
        "handed": list(outcome.handed),
    }


def _offsets(topic: str, ids: Sequence[str]) -> list[int]:
    words = [word for id in ids for word in (sys.stdin.read().split() if id == "-" else [id])]
    return [offset_of(word, topic) for word in words]
