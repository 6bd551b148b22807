"""`escapement outbox`: outboxes in tables that an application has already."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Final

import click

from escapement.broker.limits import BrokerLimits
from escapement.broker.outbox.messages import read_rows
from escapement.cli.input.confirm import confirm
from escapement.cli.input.database import DATABASE, OUTBOXES, PLACE, database, database_of, place
from escapement.cli.input.options import Command, output_option
from escapement.cli.output.line import print_json
from escapement.cli.output.table import counted, print_record, print_rows
from escapement.errors import InvalidRequest
from escapement.storage.catalog.delay_policy import DelayPolicy
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.outbox.mapping import (
    DUE_UNITS,
    MAX_HEADER_COLUMNS,
    PROFILES,
    OutboxMapping,
    of_profile,
)
from escapement.storage.outbox.mapping_table import (
    add_mapping,
    checked,
    install,
    read_mappings,
    remove_mapping,
)
from escapement.storage.outbox.row import OutboxRow
from escapement.storage.outbox.statements import Statements
from escapement.storage.outbox.tables import OUTBOX

# How many rows ``--check`` shows.
# The delays that are shown, because the command does not ask the broker for policies.
_DELAYS: Final = DelayPolicy().within(BrokerLimits().max_delay_ms)
_SHOWN_ROWS: Final = 5
# How far rows that wait are counted.
_MAX_COUNTED: Final = 100_000
# The tables of escapement itself, which cannot be mapped.
_RESERVED: Final = OUTBOX.partition("_")[0] + "_"
# The most characters of a payload that ``--check`` shows.
_SHOWN_CHARS: Final = 60

_table = click.argument("words", nargs=-1, required=True, metavar=PLACE)


@click.group(
    epilog="""\b
    Examples:
      escapement outbox add mysql://app@db.example/shop outbox --profile debezium --check
      escapement outbox add shop.outbox --profile debezium
      escapement outbox list shop

    Without a URL, ESCAPEMENT_OUTBOX must have the URL of the database, as it does for a broker.
    Without a password in the URL, it is read from ESCAPEMENT_PASSWORD. Every user of a machine can
    see its command lines.
    """
)
def outbox() -> None:
    """Serve tables that an application has already as outboxes.

    A mapping says which columns of a table become which parts of a message. A broker that runs
    with --outbox moves the committed rows of mapped tables to their topics, each exactly once. The
    tables keep their schema.
    """


def _column(option: str, meaning: str) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for the name of a column."""
    return click.option(option, metavar="COLUMN", help=meaning)


@outbox.command(
    epilog="""\b
    Examples:
      escapement outbox add mysql://root@db/shop outbox --profile debezium --check
      escapement outbox add shop.outbox --profile debezium
      escapement outbox add mysql://root@db/shop message --profile eventuate
      escapement outbox add mysql://root@db/shop watermill_orders --profile watermill --topic orders
      escapement outbox add mysql://root@db/shop OutboxMessage --profile masstransit --topic events
      escapement outbox add mysql://root@db/shop events --topic events --row-as-json --done sent=1

    An option overrides the column of the profile. An empty COLUMN ('') leaves the column out.
    Creates the tables of `escapement sql install`, unless they exist.
    """
)
@_table
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="custom",
    show_default=True,
    help="The project whose usual columns the table has.",
)
@_column("--id-column", "Identifies a row. Must be NOT NULL, with a unique index.")
@_column("--order-column", "Gives the order of rows, if the id does not.")
@click.option("--topic", metavar="TOPIC", help="The topic of all messages.")
@_column("--topic-column", "Has the topic of each message.")
@click.option("--topic-prefix", metavar="TEXT", help="Precedes the topic in --topic-column.")
@_column("--key-column", "Has the key.")
@click.option("--key-header", metavar="NAME", help="The header that has the key.")
@_column("--payload-column", "Has the payload.")
@click.option("--row-as-json", is_flag=True, help="The payload is the whole row as JSON.")
@_column("--size-column", "Has the size of the payload in bytes, for quicker looks.")
@_column("--headers-column", "Has the headers, as a JSON object.")
@click.option(
    "--header",
    "headers",
    metavar="[NAME=]COLUMN",
    multiple=True,
    help="A column that becomes a header; may be repeated.",
)
@_column("--due-column", "Has the time of delivery; NULL for now.")
@click.option(
    "--due-unit",
    type=click.Choice(list(DUE_UNITS)),
    help="What --due-column has: a datetime in UTC (default), or a number since 1970.",
)
@_column("--dedup-column", "Has the dedup key.")
@_column("--priority-column", "Has the priority, 0 to 255.")
@click.option(
    "--done",
    metavar="delete|COLUMN=VALUE",
    help="What happens to a row that was moved. VALUE may be now.",
)
@click.option(
    "--pending",
    metavar="VALUE",
    help="The value of the column of --done in rows that wait; its default if not given.",
)
@_column("--not-null-column", "Rows that have NULL here are not moved.")
@click.option("--check", is_flag=True, help="Show the mapping and the first rows, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask whether to send the rows that wait.")
def add(words: tuple[str, ...], check: bool, yes: bool, **options: Any) -> None:
    """Map the table TABLE in the database DB, so that brokers move its rows."""
    where = place(words)
    table = where.table
    if table.lower().startswith(_RESERVED):
        raise InvalidRequest(f"{table} is a table of escapement itself; brokers serve {OUTBOX}")
    engine = _engine(database_of(where, OUTBOXES))
    mapping = _mapping(table, **options)
    with closing(engine.connect()) as connection:
        made = checked(connection, mapping)
        for warning in made.warnings:
            click.echo(f"Warning: {warning}", err=True)
        waiting = connection.execute(made.waiting, (_MAX_COUNTED,)).rows[0][0]
        if check:
            _show(connection, mapping, made, waiting)
            return
        if waiting and not yes:
            more = "at least " if waiting == _MAX_COUNTED else ""
            confirm(f"Send {more}{counted(waiting, 'row')} of table {table}?")
        install(connection)
        add_mapping(connection, mapping)
    click.echo(f"Brokers that serve {engine.location} move the rows of {table} within ten seconds.")


@outbox.command(
    "list",
    epilog="""\b
    Examples:
      escapement outbox list mysql://root@db/shop
      escapement outbox list shop -o json

    The state of a table is ok, or the reason why its rows are not moved. The rows that wait are
    counted up to 100,000. The table of `escapement sql install` is not listed.
    """,
)
@click.argument("url", metavar=f"[{DATABASE}]", required=False)
@output_option("table", "How to print the outboxes.")
def list_outboxes(url: str | None, output: str) -> None:
    """List the mapped tables of the database DB, with their state."""
    with closing(_engine(database(url, OUTBOXES)).connect()) as connection:
        records = [
            _record(connection, table, text) for table, text in read_mappings(connection).items()
        ]
    if output == "json":
        print_json(records)
        return
    print_rows(records, ("table", "topic", "done", "waiting", "state"), "no mapped tables")


@outbox.command(
    epilog="""\b
    Examples:
      escapement outbox remove mysql://root@db/shop message
      escapement outbox remove shop.message

    Rows that wait stay in the table. If you map the table again, they are moved.
    """
)
@_table
def remove(words: tuple[str, ...]) -> None:
    """Stop moving rows of the mapped table TABLE in the database DB."""
    where = place(words)
    with closing(_engine(database_of(where, OUTBOXES)).connect()) as connection:
        remove_mapping(connection, where.table)
    click.echo(f"Brokers stop moving the rows of {where.table} within ten seconds.")


def _engine(address: MysqlAddress) -> MysqlEngine:
    return MysqlEngine(address, creates=False)


def _mapping(
    table: str,
    profile: str,
    row_as_json: bool,
    headers: tuple[str, ...],
    done: str | None,
    pending: str | None,
    **options: str | None,
) -> OutboxMapping:
    """Return the mapping of a profile with the options that override it."""
    changes: dict[str, Any] = {
        name: value or None for name, value in options.items() if value is not None
    }
    if changes.get("topic") is not None:
        changes.setdefault("topic_column", None)
    if "topic_prefix" in changes:
        changes["topic_prefix"] = changes["topic_prefix"] or ""
    if changes.get("key_column") is not None:
        changes.setdefault("key_header", None)
    if row_as_json:
        if changes.get("payload_column"):
            raise InvalidRequest("give either --payload-column or --row-as-json")
        changes["payload_column"] = None
    if headers:
        if len(headers) > MAX_HEADER_COLUMNS:
            raise InvalidRequest(f"at most {MAX_HEADER_COLUMNS} columns may become headers")
        changes["header_columns"] = tuple(map(_header, filter(None, headers)))
    if done == "delete":
        changes |= {"done_column": None, "done_value": ""}
    elif done is not None:
        column, equals, value = done.partition("=")
        if not column or not equals:
            raise InvalidRequest("--done must be delete or COLUMN=VALUE, such as published=1")
        changes |= {"done_column": column, "done_value": value}
    found = replace(of_profile(profile, table), pending_value=pending, **changes)
    if found.id_column is None:
        raise InvalidRequest("--id-column must not be empty")
    if found.payload_column is None and not row_as_json:
        raise InvalidRequest("give --payload-column or --row-as-json")
    if pending is not None and found.done_column is None:
        raise InvalidRequest("--pending needs --done COLUMN=VALUE")
    return found


def _header(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    return (name, column) if equals else (text, text)


def _show(connection: Connection, mapping: OutboxMapping, made: Statements, waiting: int) -> None:
    """Print the mapping, and the first rows that wait as messages."""
    defaults = asdict(OutboxMapping(""))
    print_record(
        {
            name: ", ".join(f"{header}={column}" for header, column in value)
            if name == "header_columns"
            else value
            for name, value in asdict(mapping).items()
            if value != defaults[name]
        }
        | {"done": _done(mapping), "rows_that_wait": waiting}
    )
    rows = [
        OutboxRow.of(row, made.due_unit, made.header_names)
        for row in connection.execute(made.first, (_SHOWN_ROWS,)).rows
    ]
    now_ms = time.time_ns() // 1_000_000
    changes = read_rows(rows, now_ms, lambda topic: _DELAYS)
    for row, message in changes.good:
        payload = (row.payload or b"").decode("utf-8", "replace")
        click.echo()
        print_record(
            {
                "row": _id(row),
                "topic": message.topic,
                "key": row.key,
                "due_at_ms": row.due_ms,
                "headers": row.headers,
                "payload": payload[:_SHOWN_CHARS] + "…" * (len(payload) > _SHOWN_CHARS),
            }
        )
    for id, reason in changes.refused:
        click.echo(f"\nRow {id!r} would be refused: {reason}")


def _record(connection: Connection, table: str, text: str) -> dict[str, Any]:
    record: dict[str, Any] = {
        "table": table,
        "mapping": json.loads(text),
        "topic": None,
        "done": None,
        "waiting": None,
        "state": "ok",
    }
    try:
        mapping = OutboxMapping.from_json(table, text)
        topic = mapping.topic or f"{mapping.topic_prefix}{{{mapping.topic_column}}}"
        record |= {"topic": topic, "done": _done(mapping)}
        made = checked(connection, mapping)
        record["waiting"] = connection.execute(made.waiting, (_MAX_COUNTED,)).rows[0][0]
    except InvalidRequest as error:
        record["state"] = str(error)
    return record


def _done(mapping: OutboxMapping) -> str:
    return f"{mapping.done_column}={mapping.done_value}" if mapping.done_column else "delete"


def _id(row: OutboxRow) -> str:
    return row.id.hex() if isinstance(row.id, bytes) else str(row.id)
