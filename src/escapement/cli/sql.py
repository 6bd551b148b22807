"""`escapement sql`: the tables in the database of an application, and queries over messages."""

from __future__ import annotations

from contextlib import closing

import click

from escapement.cli.input.confirm import confirm
from escapement.cli.input.database import DATABASE, OUTBOXES, database
from escapement.cli.sql_query import query
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.outbox.mapping_table import INSTALLED
from escapement.storage.outbox.mapping_table import install as install_tables
from escapement.storage.outbox.tables import RESET


@click.group(
    epilog="""\b
    Examples:
      escapement sql install mysql://shop@db.example/shop
      escapement sql install shop
      escapement sql query "SELECT topic, count(*) FROM messages GROUP BY 1"

    Without a URL, ESCAPEMENT_OUTBOX must have the URL of the application's database, as it does for
    a broker. Without a password in the URL, it is read from ESCAPEMENT_PASSWORD. Every user of a
    machine can see its command lines.
    """
)
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
      escapement sql install shop
      escapement sql install --print

    Creates only what does not exist yet.
    """
)
@click.argument("url", metavar=f"[{DATABASE}]", required=False)
@click.option("--print", "prints", is_flag=True, help="Print the SQL, and change nothing.")
def install(url: str | None, prints: bool) -> None:
    """Create the outbox, and the table of acknowledgements, in the database DB."""
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
@click.argument("url", metavar=f"[{DATABASE}]", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(url: str | None, yes: bool) -> None:
    """Let any log serve the outboxes in the database DB as new ones."""
    engine = _engine(url)
    if not yes:
        confirm(f"Send all rows of the outboxes of {engine.location} anew?")
    with closing(engine.connect()) as connection:
        connection.execute(RESET)
    click.echo(f"The next broker that serves {engine.location} takes its outboxes over.")


sql.add_command(query)


def _engine(url: str | None) -> MysqlEngine:
    return MysqlEngine(database(url, OUTBOXES), creates=False)
