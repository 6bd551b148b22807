"""`escapement pipeline archive`: write finished messages to Parquet."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from escapement.cli.input.options import output_option
from escapement.cli.input.parameters import duration_ms
from escapement.cli.output.table import counted, print_rows
from escapement.cli.pipeline.source import given, refusals, source_options
from escapement.pipeline.archive import ArchiveConfig, Progress, run
from escapement.pipeline.jvm import COMPILES_ONCE
from escapement.pipeline.session import session


@click.command(
    epilog="""\b
    Examples:
      escapement pipeline archive --to s3a://bucket/archive --log mysql://db/escapement
      escapement pipeline archive shop/eu/orders --to /mnt/archive --older-than 7d

    Run it regularly, with the same --to. It may be interrupted and run again. It archives only
    topics of namespaces whose log keeps messages until they are archived: escapement admin
    namespaces update TENANT/NAMESPACE --archive yes
    """
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--to",
    "root",
    required=True,
    metavar="PATH",
    help="Root of the archive, on any file system that Spark can write to.",
)
@click.option(
    "--older-than",
    "older_than_ms",
    type=duration_ms,
    metavar="DURATION",
    help="Only messages published longer ago than this.  [default: the namespace's retention]",
)
@output_option("table", "How to print the result.")
@source_options
def archive(
    topics: tuple[str, ...],
    root: str,
    older_than_ms: int | None,
    output: str,
    **where: str | None,
) -> None:
    """Archive finished messages of TOPICs, or of all namespaces with --archive yes, as Parquet.

    A message is finished when no subscription will get it any more. After it is written and read
    back, the log may delete it.
    """

    def show(progress: Progress) -> None:
        click.echo(
            f"{progress.topics:,} of {counted(progress.of_topics, 'topic')},"
            f" {counted(progress.messages, 'message')} archived",
            err=True,
        )

    config = ArchiveConfig(given(topics, **where), root, topics, older_than_ms, show)
    with session("archive", java_options=COMPILES_ONCE) as spark, refusals():
        done = run(spark, config)
    if output == "json":
        click.echo(json.dumps([asdict(one) for one in done.topics]))
        return
    rows = [asdict(one) for one in done.topics]
    columns = ["topic", "messages", "size_bytes", "files", "first_offset", "last_offset"]
    print_rows(rows, columns, "there is nothing to archive")
