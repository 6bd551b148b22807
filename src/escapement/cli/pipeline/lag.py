"""`escapement pipeline lag`: lateness, time to acknowledge, and attempts of messages."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from escapement.cli.input.options import output_option, parquet_option
from escapement.cli.input.parameters import positive_duration_ms
from escapement.cli.output.table import print_rows
from escapement.cli.pipeline.source import given, refusals, source_options
from escapement.pipeline.lag import LagConfig, run
from escapement.pipeline.session import session

_COLUMNS = (
    "acknowledged",
    "redelivered",
    "late_p50_ms",
    "late_p99_ms",
    "late_max_ms",
    "acked_after_p50_ms",
    "acked_after_p99_ms",
    "acked_after_max_ms",
    "attempts_mean",
    "attempts_max",
)


@click.command(
    epilog="""\b
    Examples:
      escapement pipeline lag --log mysql://db/escapement
      escapement pipeline lag shop/eu/orders --for 1h --by hour
      escapement pipeline lag --for 4w --parquet s3a://bucket/lag -o json

    Counts acknowledged messages, by whole hours (UTC): a message counts in the hour of its
    delivery. The figures are kept for 90 days.
    """
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--for",
    "within_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="How far to look back.",
)
@click.option(
    "--by",
    type=click.Choice(["subscription", "hour"]),
    default="subscription",
    show_default=True,
    help="Print a line for each subscription, or for each hour of each subscription.",
)
@parquet_option("Where to write the figures, hour by hour; must not exist yet.")
@output_option("table", "How to print the figures.")
@source_options
def lag(
    topics: tuple[str, ...],
    within_ms: int,
    by: str,
    parquet: str | None,
    output: str,
    **where: str | None,
) -> None:
    """Show how late messages of TOPICs, or of all topics, were delivered and acknowledged."""
    config = LagConfig(given(topics, **where), topics, within_ms, parquet)
    with session("lag") as spark, refusals():
        found = run(spark, config)
    if output == "json":
        click.echo(json.dumps(asdict(found)))
        return
    rows = [asdict(one) for one in (found.hours if by == "hour" else found.totals)]
    when = ["hour_at_ms"] if by == "hour" else []
    nothing = "nothing was acknowledged in this time"
    print_rows(rows, ["topic", "subscription", *when, *_COLUMNS], nothing)
