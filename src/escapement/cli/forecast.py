"""`escapement forecast`: a bar chart of the messages of a topic or namespace that fall due."""

from __future__ import annotations

import json
from typing import Any

import click

from escapement.cli.input.options import output_option
from escapement.cli.input.remote import ask_broker, broker_option
from escapement.cli.input.spans import LENGTHS, midnight_ms, span_options
from escapement.cli.output.bars import draw
from escapement.cli.output.table import counted
from escapement.client.connection.address import Addresses
from escapement.clock import moment
from escapement.spans import Spans


@click.command(
    epilog="""\b
    Examples:
      escapement forecast orders
      escapement forecast shop/eu/orders --by day --for 4w
      escapement forecast orders --by minute -o json
      escapement forecast --namespace shop/eu
      escapement forecast --all --by minute

    Days and hours follow this machine's time zone, with its current offset from UTC. The forecast
    of a topic does not count messages that are due already: see `escapement admin topics stats`.

    Brokers count the messages of a namespace in the background, so its numbers may be some minutes
    old if tens of millions are pending. The chart then says when they were counted.
    """
)
@click.argument("topic", required=False)
@click.option("--namespace", metavar="TENANT/NAMESPACE", help="Count all topics of a namespace.")
@click.option("--all", "everything", is_flag=True, help="Count all topics.")
@span_options
@output_option("bars", "How to print the forecast.")
@broker_option
def forecast(
    topic: str | None,
    namespace: str | None,
    everything: bool,
    by: str,
    within_ms: int | None,
    output: str,
    at_broker: Addresses,
) -> None:
    """Show how many messages of TOPIC fall due in each minute, hour or day.

    With --namespace or --all, count the messages of many topics, and show how many are overdue.
    """
    if (topic is not None) + (namespace is not None) + everything != 1:
        raise click.UsageError("Give one of TOPIC, --namespace and --all.")
    by_ms, usual_ms, pattern = LENGTHS[by]
    spans = {"by_ms": by_ms, "within_ms": within_ms or usual_ms, "origin_ms": midnight_ms()}
    if topic is not None:
        answer = ask_broker(at_broker, "topics.forecast", topic=topic, **spans)
    else:
        answer = ask_broker(at_broker, "namespaces.forecast", namespace=namespace, **spans)
    if output == "json":
        click.echo(json.dumps(answer))
        return
    if answer["total"]:
        draw(_spans(answer), answer["counts"], pattern)
    else:
        where = answer["topic"] if topic is not None else namespace or "any topic"
        click.echo(f"nothing falls due on {where} in this time")
    if topic is None:
        _tell_overdue(answer)


def _spans(answer: dict[str, Any]) -> Spans:
    from_ms = answer.get("from_ms", answer["first_ms"])
    count = len(answer["counts"])
    return Spans(from_ms, answer["until_ms"], answer["by_ms"], answer["first_ms"], count)


def _tell_overdue(answer: dict[str, Any]) -> None:
    """Print the overdue messages of a namespace, and the time of the count."""
    overdue = counted(answer["overdue"], "message")
    click.echo(f"{overdue} overdue: {answer['due']:,} due, {answer['retrying']:,} in retry")
    at = moment(answer["at_ms"]).astimezone()
    click.echo(
        f"counted at {at:%a %d %b %H:%M:%S}{'' if answer['exact'] else ', in part estimated'}"
    )
