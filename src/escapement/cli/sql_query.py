"""`escapement sql query`: a read-only SQL query over the messages of a log."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import click

from escapement.cli.input.options import output_option
from escapement.cli.output.line import print_json, text
from escapement.cli.output.table import print_values
from escapement.cli.pipeline.source import given, source_options
from escapement.errors import InvalidRequest

# A table is printed when all its rows are known, so that its columns have the right width.
_TABLE_ROWS: Final = 1000

Rows = Iterator[tuple[Any, ...]]


@click.command(
    epilog="""\b
    Examples:
      escapement sql query "SELECT topic, state, count(*) FROM messages GROUP BY 1, 2"
      escapement sql query "SELECT offset, payload FROM messages WHERE key = 'order-7'"
      escapement sql query "SELECT * FROM messages" --topic orders -o csv

    \b
    The columns of messages: topic (the full name), offset, deliver_at, deliver_at_ms,
    published_at, published_at_ms, key, properties (JSON), priority, attempt, state, payload.
    Times are UTC, such as 2026-12-24 18:00:00.000. Needs the packages of escapement[spark],
    but neither Java nor a running broker.
    """
)
@click.argument("query", metavar="SELECT")
@click.option("--topic", "topics", multiple=True, help="Read only this topic; repeatable.")
@click.option("--subscription", help="Show states and attempts in this subscription.")
@click.option(
    "--archived/--no-archived", default=True, show_default=True, help="Read archived messages too."
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Print at most this many rows.  [default: {_TABLE_ROWS} in a table, else all]",
)
@output_option("table", "How to print rows; JSON is one object per line.", "csv")
@source_options
def query(
    query: str,
    topics: tuple[str, ...],
    subscription: str | None,
    archived: bool,
    limit: int | None,
    output: str,
    **where: str | None,
) -> None:
    """Run the query SELECT, in the SQL of SQLite, over the table messages."""
    source = given(topics, **where)
    try:
        from escapement.pipeline.query.query import Query, run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise InvalidRequest("this needs pyarrow: install escapement[spark]") from None
    with run(Query(source, query, topics, subscription, archived)) as found:
        if output == "table":
            _print_table(found.columns, found.rows, _TABLE_ROWS if limit is None else limit)
            return
        rows = islice(found.rows, limit)
        if output == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(found.columns)
            writer.writerows([_text(value) for value in row] for row in rows)
            return
        for row in rows:
            print_json(dict(zip(found.columns, row, strict=True)))


def _print_table(columns: list[str], rows: Rows, limit: int) -> None:
    shown = [[_text(value) for value in row] for row in islice(rows, limit)]
    print_values(columns, shown, "no rows")
    if next(rows, None) is not None:
        click.echo(f"only the first {limit} rows are shown; see --limit and -o csv", err=True)


def _text(value: Any) -> Any:
    """Return bytes as escaped text, and any other value unchanged."""
    return text(value) if isinstance(value, bytes) else value
