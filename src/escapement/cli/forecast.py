"""`escapement forecast`: how much of a topic falls due when, drawn as bars."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import click
from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from escapement.cli.options import output_option
from escapement.cli.parameters import positive_duration_ms
from escapement.cli.remote import broker_option, with_broker
from escapement.cli.table import console, counted
from escapement.client.broker import Broker

_MINUTE_MS: Final = 60_000
# How long a span is, how far to look ahead if nobody says, and how its beginning is written.
_SPANS: Final = {
    "minute": (_MINUTE_MS, 60 * _MINUTE_MS, "%a %d %b %H:%M"),
    "hour": (60 * _MINUTE_MS, 24 * 60 * _MINUTE_MS, "%a %d %b %H:%M"),
    "day": (24 * 60 * _MINUTE_MS, 14 * 24 * 60 * _MINUTE_MS, "%a %d %b %Y"),
}
_BAR_WIDTH: Final = 50
# Longer rows of spans in which nothing falls due are drawn as one line.
_EMPTY_SPANS: Final = 3


@click.command(
    epilog="""\b
    Examples:
      escapement forecast orders
      escapement forecast shop/eu/orders --by day --for 4w
      escapement forecast orders --by minute -o json

    Days and hours are those of this machine's time zone as it is now. What is due already is
    not counted: see `escapement admin topics stats`.
    """
)
@click.argument("topic")
@click.option(
    "--by",
    type=click.Choice(list(_SPANS)),
    default="hour",
    show_default=True,
    help="How long the spans of time are.",
)
@click.option(
    "--for",
    "within_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="How far to look ahead: 1h by minute, 1d by hour, 2w by day if not given.",
)
@output_option("bars", "How to print it.")
@broker_option
def forecast(
    topic: str, by: str, within_ms: int | None, output: str, at_broker: tuple[str, int]
) -> None:
    """Show how many messages of TOPIC fall due when."""
    by_ms, usual_ms, pattern = _SPANS[by]
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)

    async def ask(broker: Broker) -> dict[str, Any]:
        found: dict[str, Any] = await broker.admin(
            "topics.forecast",
            topic=topic,
            by_ms=by_ms,
            within_ms=within_ms or usual_ms,
            origin_ms=int(midnight.timestamp() * 1000),
        )
        return found

    answer = with_broker(at_broker, ask)
    if output == "json":
        click.echo(json.dumps(answer))
    elif not answer["total"]:
        click.echo(f"nothing falls due on {answer['topic']} in this time")
    else:
        _draw(answer, pattern)


def _draw(answer: dict[str, Any], pattern: str) -> None:
    counts = answer["counts"]
    most = max(counts)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(width=_BAR_WIDTH)
    empty = 0
    for span, count in enumerate(counts):
        following = counts[span : span + _EMPTY_SPANS]
        if not count and (empty or (len(following) == _EMPTY_SPANS and not any(following))):
            empty += 1
            continue
        if empty:
            table.add_row(Text("..."), "", "")
            empty = 0
        begins_s = (answer["first_ms"] + span * answer["by_ms"]) / 1000
        begins = datetime.fromtimestamp(begins_s).astimezone()
        table.add_row(begins.strftime(pattern), f"{count:,}", Bar(most, 0, count, width=_BAR_WIDTH))
    to = console()
    to.print(table)
    to.print(f"{counted(answer['total'], 'message')} to fall due in this time")
