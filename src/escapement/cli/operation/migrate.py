"""`escapement migrate`: create or upgrade a broker's tables with another user than the broker's."""

from __future__ import annotations

import re
from typing import Final

import click

from escapement.broker.config import DEFAULT_PARALLELISM, MOST_PARALLELISM
from escapement.cli.input.database_urls import database_url_option
from escapement.cli.output.table import counted
from escapement.storage.bundles import MAX_BUNDLES
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql.engine import SQL_MODE, MysqlEngine
from escapement.storage.log.table_sets import Plan
from escapement.storage.upgrade import upgrade

# More tables than a server should have for one log.
_MOST_SETS: Final = 1_000
# The beginnings of statements that people need not read: they only record the others.
_RECORDS: Final = re.compile(r"(INSERT|REPLACE)\b")
_OBJECT: Final = re.compile(r"(CREATE|ALTER|DROP)\b.*?\b(TABLE|VIEW) (?:IF (?:NOT )?EXISTS )?(\w+)")


@click.command(
    epilog="""\b
    Examples:
      ESCAPEMENT_LOG=mysql://admin:secret@db:3306/escapement escapement migrate
      escapement migrate --bundles 16
      escapement migrate --table-sets 40 --table-parallelism 8
      escapement migrate --dry-run
    """,
)
@database_url_option(
    "--log", "log_url", help="URL of the log in MySQL, with a user that may create tables."
)
@click.option(
    "--table-sets",
    type=click.IntRange(0, _MOST_SETS),
    help="Sets of tables for the log. A bundle has about one for each day that it keeps.  [default:"
    " 16, and enough that two are free for each bundle]",
)
@click.option(
    "--bundles",
    type=click.IntRange(1, MAX_BUNDLES),
    help="Create enough sets for this number of bundles, before you add them.",
)
@click.option(
    "--table-parallelism",
    type=click.IntRange(1, MOST_PARALLELISM),
    default=DEFAULT_PARALLELISM,
    show_default=True,
    help="Tables in each set; at least the --table-parallelism of the broker.",
)
@click.option("--dry-run", is_flag=True, help="Print the SQL, and change nothing.")
def migrate(
    log_url: str | None,
    table_sets: int | None,
    bundles: int | None,
    table_parallelism: int,
    dry_run: bool,
) -> None:
    """Create or upgrade the tables of a broker in MySQL.

    The broker then needs only SELECT, INSERT, UPDATE and DELETE. A broker may run meanwhile. If
    nothing is to be done, nothing changes. A log in SQLite needs no such command.
    """
    if log_url is None:
        raise click.UsageError("Give --log, or set ESCAPEMENT_LOG: the URL of the log in MySQL.")
    if table_sets is not None and bundles is not None:
        raise click.UsageError("Give --table-sets or --bundles, not both.")
    plan = Plan(table_parallelism, table_sets, bundles or 1)
    engine = MysqlEngine(MysqlAddress.parse(log_url), creates=not dry_run)
    ran: list[str] = []

    def done(statement: str) -> None:
        if dry_run and not ran:
            click.echo(f"SET SESSION sql_mode = '{SQL_MODE}';")
        ran.append(statement)
        if dry_run:
            click.echo(f"{statement.strip()};")
        elif not _RECORDS.match(statement):
            click.echo(_summary(statement))

    if not dry_run:
        engine.check_fitness()
    upgrade(engine, plan, done, dry_run=dry_run)
    if not dry_run:
        changes = counted(len(ran), "statement")
        click.echo(f"{changes} run." if ran else "The tables are up to date.")


def _summary(statement: str) -> str:
    found = _OBJECT.search(statement)
    assert found is not None, statement
    verb = {"CREATE": "created", "ALTER": "altered", "DROP": "dropped"}[found[1]]
    return f"{verb} the {found[2].lower()} {found[3]}"
