"""`escapement tables`: the message tables of a MySQL database.

``create`` connects to the database itself, ``ack`` to a broker, and ``list`` to either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any, Final

import click

from escapement.cli.input.database import (
    DATABASE,
    PLACE,
    TABLES,
    database,
    database_of,
    place,
)
from escapement.cli.input.options import output_option
from escapement.cli.input.parameters import duration_ms, positive_duration_ms
from escapement.cli.input.remote import broker_option, with_broker
from escapement.cli.input.table_topics import topic_of_table
from escapement.cli.output.line import print_json
from escapement.cli.output.table import counted, print_rows
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses
from escapement.errors import AlreadyExists, StorageError, StorageUnavailable
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.tables.ddl import create_statement, create_table
from escapement.tables.directives import MAX_COUNT, Directives, Spelling
from escapement.tables.discovery import Discovery, MessageTable
from escapement.tables.poll import index_warning

# The directives that the table shows. JSON has all.
_DIRECTIVES: Final = tuple(
    name for name in Directives.__dataclass_fields__ if name not in ("message_cols", "key_column")
)

# The columns of tables that a broker serves.
_SERVED: Final = ("table", "state", "consumers", "waiting", "in_flight", "acknowledged")


@click.group(
    epilog="""\b
    Examples:
      escapement tables create mysql://app@db.example/shop my_message --ack-wait 1m
      escapement tables list mysql://app@db.example/shop
      escapement tables list --broker broker.example:7650

    With DB instead of a URL, ESCAPEMENT_TABLES must have the URL of the database, as it does for a
    broker. Without a password in the URL, it is read from ESCAPEMENT_PASSWORD. Every user of a
    machine can see its command lines.
    """
)
def tables() -> None:
    """Check and create message tables in MySQL, and acknowledge their rows.

    A message table is an ordinary table with directives in its COMMENT, such as
    escapement_message,ack_wait=30, or vitess_message,vt_ack_wait=30. A broker that runs with
    --tables sends its rows to consumers.
    """


@tables.command(
    "list",
    epilog="""\b
    Examples:
      escapement tables list
      escapement tables list --broker broker.example:7650 -o json
      escapement tables list mysql://app:secret@db.example/shop
      escapement tables list shop

    A table is rejected if it cannot be served, and waiting if the broker cannot read or write it
    now. The reasons follow the list, and warnings too. With -o json, the state is the reason.
    """,
)
@click.argument("url", metavar=f"[{DATABASE}]", required=False)
@output_option("table", "How to print the tables.")
@broker_option
def list_tables(url: str | None, output: str, at_broker: Addresses) -> None:
    """List message tables with their state.

    Without an argument, asks the broker for the tables that it serves. With a database, reads the
    tables of this database, and lists their directives too.
    """
    if url is None:
        _list_served(at_broker, output)
    else:
        _list_database(database(url, TABLES), output)


def _list_served(at_broker: Addresses, output: str) -> None:
    async def ask(broker: Broker) -> tuple[list[dict[str, Any]], list[str]]:
        stats = await broker.admin("broker.stats")
        return await broker.admin("tables.list"), stats["tables_waiting"]

    records, waiting = with_broker(at_broker, ask)
    if output == "json":
        print_json(records)
        return
    lines, reasons = [], []
    for record in records:
        state = record["state"]
        if "consumers" not in record:
            state = "rejected"
            reasons.append(f"{record['table']} is rejected: {record['state']}")
        elif state != "ok":
            state = "waiting"
        lines.append(dict.fromkeys(_SERVED) | record | {"state": state})
    print_rows(lines, _SERVED, "the broker serves no message tables")
    for line in (*reasons, *(f"Messages wait: {one}" for one in waiting)):
        click.echo(line)


def _list_database(address: MysqlAddress, output: str) -> None:
    with _connected(address) as connection:
        found = Discovery().look(connection)
        good = {name: _record(connection, table) for name, table in found.good.items()}
    rejected = {name: _rejection(name, table.reason) for name, table in found.rejected.items()}
    records = [record for _, record in sorted((good | rejected).items())]
    if output == "json":
        print_json(records)
        return
    lines = [
        record
        | (record["directives"] or dict.fromkeys(_DIRECTIVES))
        | {"state": "rejected" if record["table"] in rejected else "ok"}
        for record in records
    ]
    columns = ("table", "edition", *_DIRECTIVES, "state")
    print_rows(lines, columns, "no message tables")
    for name, table in sorted(found.rejected.items()):
        click.echo(f"{name} is rejected: {table.reason}")
    for record in records:
        for warning in record["warnings"]:
            click.echo(f"Warning for {record['table']}: {warning}")


@tables.command(
    "create",
    epilog="""\b
    Examples:
      escapement tables create mysql://app:secret@db.example/shop my_message
      escapement tables create mysql://app@db.example/shop mails --ack-wait 5m --purge-after 7d
      escapement tables create shop.mails
      escapement tables create shop.mails --print

    Without a URL, ESCAPEMENT_TABLES must have the URL of the database, as it does for a broker.
    The database must exist. You may add columns to the table, and change the type of message.
    """,
)
@click.argument("words", nargs=-1, required=True, metavar=PLACE)
@click.option(
    "--ack-wait",
    "ack_wait_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="Resend a message that is not acknowledged within this time.",
)
@click.option(
    "--min-backoff",
    "min_backoff_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Shortest wait between retries; the same as --ack-wait if not given.",
)
@click.option(
    "--max-backoff",
    "max_backoff_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Longest wait between retries; no bound if not given.",
)
@click.option(
    "--purge-after",
    "purge_after_ms",
    type=duration_ms,
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="Delete messages this long after they were acknowledged.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, MAX_COUNT),
    default=10,
    show_default=True,
    help="Most messages to send at once.",
)
@click.option(
    "--cache-size",
    type=click.IntRange(1, MAX_COUNT),
    default=10_000,
    show_default=True,
    help="Most messages to keep in memory.",
)
@click.option(
    "--poller-interval",
    "poll_interval_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="How often to look for due messages.",
)
@click.option(
    "--spelling",
    type=click.Choice(["escapement", "vitess"]),
    default="escapement",
    show_default=True,
    help="Spelling of the directives: ack_wait=30, or vt_ack_wait=30 as in Vitess.",
)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the CREATE TABLE and do not connect to the database.",
)
def create(
    words: tuple[str, ...],
    ack_wait_ms: int,
    min_backoff_ms: int | None,
    spelling: Spelling,
    only_print: bool,
    **others: Any,
) -> None:
    """Create the message table TABLE in the database DB."""
    where = place(words)
    directives = Directives(
        ack_wait_ms=ack_wait_ms,
        min_backoff_ms=ack_wait_ms if min_backoff_ms is None else min_backoff_ms,
        **others,
    )
    if only_print:
        click.echo(create_statement(where.table, directives, spelling) + ";")
        return
    address = database_of(where, TABLES)
    with _connected(address) as connection:
        _check_new(connection, where.table)
        create_table(connection, where.table, directives, spelling)
    click.echo(f"created the message table {where.table} in {address}")


def _check_new(connection: Connection, table: str) -> None:
    """Raise ``AlreadyExists`` if the database has a message table of this name."""
    found = Discovery().look(connection)
    if table in found.good:
        raise AlreadyExists(f"Table {table} is a message table already. Nothing was changed.")
    if table in found.rejected:
        raise AlreadyExists(
            f"Table {table} exists already, and is rejected as a message table:"
            f" {found.rejected[table].reason}"
        )


@tables.command(
    epilog="""\b
    Examples:
      escapement tables ack shop.mails 17 18
      escapement tables ack table://shop/mails 17 --broker broker.example:7650
      escapement tables ack shop.mails --hex 0x8f3c2a

    Acknowledging a row again changes nothing.
    """,
)
@click.argument("table")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option(
    "--hex", "are_hex", is_flag=True, help="IDs are bytes in hexadecimal, as stream prints them."
)
@broker_option
def ack(table: str, ids: tuple[str, ...], are_hex: bool, at_broker: Addresses) -> None:
    """Acknowledge the rows of TABLE with these IDs, and print how many took effect.

    A broker must serve TABLE, such as shop.mails or table://shop/mails. The name alone is enough if
    only one database has such a table.
    """
    given = list(map(_bytes_of, ids)) if are_hex else ids

    async def work(broker: Broker) -> int:
        is_full = "." in table or "/" in table
        topic = table if is_full else await topic_of_table(broker, table)
        return await broker.ack_rows(topic, given)

    count = with_broker(at_broker, work)
    click.echo(f"acknowledged {counted(count, 'row')}")


def _bytes_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise click.UsageError(f"{text!r} is not hexadecimal. Write it like 0x8f3c2a.") from None


@contextmanager
def _connected(address: MysqlAddress) -> Iterator[Connection]:
    """Yield a connection to the database, which is not created."""
    with closing(MysqlEngine(address, creates=False).connect()) as connection:
        yield connection


def _record(connection: Connection, table: MessageTable) -> dict[str, Any]:
    warnings = list(table.warnings)
    try:
        warning = index_warning(connection, table)
    except StorageUnavailable:
        raise
    except StorageError as error:
        warning = f"The index cannot be checked: {error}."
    if warning is not None:
        warnings.append(warning)
    return {
        "table": table.name,
        "edition": table.layout.edition,
        "state": "ok",
        "directives": asdict(table.directives),
        "further_columns": {one.name: one.column_type for one in table.layout.further},
        "warnings": warnings,
    }


def _rejection(name: str, reason: str) -> dict[str, Any]:
    return {
        "table": name,
        "edition": None,
        "state": reason,
        "directives": None,
        "further_columns": None,
        "warnings": [],
    }
