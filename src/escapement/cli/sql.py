"""`escapement sql`: the tables in the database of an application, and queries over messages."""

from __future__ import annotations

from contextlib import closing

import click

from escapement.cli.input.log_url import log_url
from escapement.cli.sql_query import query
from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql import MysqlEngine
from escapement.storage.outbox.mapping_table import INSTALLED
from escapement.storage.outbox.mapping_table import install as install_tables
from escapement.storage.outbox.tables import RESET


@click.group()
def sql() -> None:
    """Send and acknowledge messages in an application's own transactions, and query messages.

    The application inserts rows into the tables escapement_outbox and escapement_acks of its MySQL
    or MariaDB database. A broker that runs with --outbox moves messages to their topics, and
    learns of acknowledgements.
    """


@sql.command(
    epilog="""\b
    Examples:
      escapement sql install mysql://shop@db/shop
      escapement sql install --print

    Creates only what does not exist yet. Give a password in the variable ESCAPEMENT_OUTBOX rather
    than on the command line.
    """
)
@click.argument("url", type=log_url, required=False, envvar="ESCAPEMENT_OUTBOX")
@click.option("--print", "prints", is_flag=True, help="Print the SQL, and change nothing.")
def install(url: str | None, prints: bool) -> None:
    """Create the outbox, and the table of acknowledgements, in the database URL."""
    if prints:
        click.echo("\n\n".join(f"{statement};" for statement in INSTALLED))
        return
    engine = _engine(url)
    with closing(engine.connect()) as connection:
        install_tables(connection)
    click.echo(f"The outbox of {engine.location} is ready: escapement serve --outbox URL")


@sql.command(
    epilog="""\b
    Example:
      escapement sql reset mysql://shop@db/shop

    Use it after a restore of the application's database or of the log, and to let another log
    serve the outboxes of the database. Stop the broker that serves them first. All rows that wait
    in an outbox are sent, also those that were sent before the restore: delete these first. The
    tables that are mapped with `escapement outbox add` are outboxes too.
    """
)
@click.argument("url", type=log_url, envvar="ESCAPEMENT_OUTBOX")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(url: str, yes: bool) -> None:
    """Let any log serve the outboxes in the database URL as new ones."""
    engine = _engine(url)
    if not yes:
        click.confirm(f"Send all rows of the outboxes of {engine.location} anew?", abort=True)
    with closing(engine.connect()) as connection:
        connection.execute(RESET)
    click.echo(f"The next broker that serves {engine.location} takes its outboxes over.")


sql.add_command(query)


def _engine(url: str | None) -> MysqlEngine:
    if url is None:
        raise InvalidRequest("give the URL of the database, such as mysql://shop@db/shop")
    return MysqlEngine(MysqlAddress.parse(url), creates=False)
