"""`escapement pipeline forecast`: count the messages of many topics that fall due."""

from __future__ import annotations

import json

import click

from escapement.cli.input.options import output_option, parquet_option
from escapement.cli.input.spans import LENGTHS, midnight_ms, span_options
from escapement.cli.output.bars import draw
from escapement.cli.output.table import print_rows
from escapement.cli.pipeline.source import given, refusals, source_options
from escapement.pipeline.forecast import ForecastConfig, ForecastResult, run
from escapement.pipeline.session import session


@click.command(
    epilog="""\b
    Examples:
      escapement pipeline forecast shop/eu/orders --log mysql://db/escapement
      escapement pipeline forecast orders refunds --by day --for 4w --capacity 500
      escapement pipeline forecast orders --parquet s3a://bucket/forecast -o json

    Days and hours follow this machine's time zone, with its current offset from UTC. Messages
    already due are not counted.
    """
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@span_options
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    help="Messages per second that consumers can handle, for all TOPICs together.",
)
@parquet_option("Where to write the forecast, topic by topic; must not exist yet.")
@output_option("bars", "How to print the forecast.")
@source_options
def forecast(
    topics: tuple[str, ...],
    by: str,
    within_ms: int | None,
    capacity: int | None,
    parquet: str | None,
    output: str,
    **where: str | None,
) -> None:
    """Count how many messages of TOPICs fall due in each minute, hour or day."""
    by_ms, usual_ms, pattern = LENGTHS[by]
    config = ForecastConfig(
        given(topics, **where) | {"topics": ",".join(topics)},
        by_ms,
        within_ms or usual_ms,
        midnight_ms(),
        capacity,
        parquet,
    )
    with session("forecast") as spark, refusals():
        found = run(spark, config)
    if output == "json":
        click.echo(json.dumps(_plain(found)))
    elif not found.counts:
        click.echo("nothing falls due in this time")
    else:
        draw(found.spans, found.total.tolist(), pattern, found.capacities)
        if len(found.counts) > 1:
            rows = [
                {"topic": topic, "messages": int(column.sum()), "most in a span": int(column.max())}
                for topic, column in found.counts.items()
            ]
            print_rows(rows, list(rows[0]), "")


def _plain(found: ForecastResult) -> dict[str, object]:
    return {
        "from_ms": found.spans.from_ms,
        "until_ms": found.spans.until_ms,
        "by_ms": found.spans.by_ms,
        "first_ms": found.spans.first_ms,
        "total": int(found.total.sum()),
        "capacities": found.capacities,
        "topics": {topic: column.tolist() for topic, column in found.counts.items()},
    }
