"""`escapement forecast`: a bar chart of the messages of a topic that fall due."""

from __future__ import annotations

import json

import click

from escapement.cli.input.options import output_option
from escapement.cli.input.remote import ask_broker, broker_option
from escapement.cli.input.spans import LENGTHS, midnight_ms, span_options
from escapement.cli.output.bars import draw
from escapement.client.connection.address import Addresses
from escapement.spans import Spans


@click.command(
    epilog="""\b
    Examples:
      escapement forecast orders
      escapement forecast shop/eu/orders --by day --for 4w
      escapement forecast orders --by minute -o json

    Days and hours follow this machine's time zone, with its current offset from UTC. Messages
    already due are not counted: see `escapement admin topics stats`.
    """
)
@click.argument("topic")
@span_options
@output_option("bars", "How to print the forecast.")
@broker_option
def forecast(topic: str, by: str, within_ms: int | None, output: str, at_broker: Addresses) -> None:
    """Show how many messages of TOPIC fall due in each minute, hour or day."""
    by_ms, usual_ms, pattern = LENGTHS[by]
    answer = ask_broker(
        at_broker,
        "topics.forecast",
        topic=topic,
        by_ms=by_ms,
        within_ms=within_ms or usual_ms,
        origin_ms=midnight_ms(),
    )
    if output == "json":
        click.echo(json.dumps(answer))
    elif not answer["total"]:
        click.echo(f"nothing falls due on {answer['topic']} in this time")
    else:
        spans = Spans(
            answer["from_ms"], answer["until_ms"], by_ms, answer["first_ms"], len(answer["counts"])
        )
        draw(spans, answer["counts"], pattern)
