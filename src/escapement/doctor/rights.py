"""Checks of the rights of a broker's user on a MySQL or MariaDB server.

Each feature of a broker needs some rights. Too few are a finding with the feature that fails and
the GRANT. Rights for all databases are a finding too, because a stolen password is worth as much as
its user may do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from escapement.doctor.finding import Finding, error, ok, warning
from escapement.errors import StorageError
from escapement.storage import schema
from escapement.storage.bundles import count_after_division
from escapement.storage.engine.base import Connection
from escapement.storage.engine.existing import tables
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.mysql.rights import ALL, Rights, rights_of
from escapement.storage.log.table_sets import Plan, command, count_free, wanted_free
from escapement.storage.outbox.ack_table import ACKS
from escapement.storage.outbox.tables import IDENTITY, MAPPING, OUTBOX, REFUSED
from escapement.tables.discovery import Discovery

# The option of `escapement serve` that names a database.
Purpose = Literal["log", "outbox", "tables"]

# The log needs these in any case.
LOG_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
# With these a broker creates, upgrades and drops its tables itself.
_DDL_RIGHTS: Final = ("CREATE", "ALTER", "DROP", "CREATE VIEW")
_OUTBOX_RIGHTS: Final = {
    OUTBOX: ("SELECT", "DELETE"),
    REFUSED: ("INSERT",),
    IDENTITY: ("SELECT", "UPDATE"),
    MAPPING: ("SELECT",),
    ACKS: ("SELECT", "UPDATE", "DELETE"),
}
_TABLE_RIGHTS: Final = ("SELECT", "UPDATE", "DELETE")
_PARTITION_RIGHTS: Final = ("ALTER", "DROP")
_LOCK_RIGHT: Final = ("LOCK TABLES",)  # it cannot be granted for one table
_BINLOG_RIGHTS: Final = (("REPLICATION SLAVE",), ("REPLICATION CLIENT", "BINLOG MONITOR"))
# Rights for all databases that a broker may need, by their names on MariaDB and MySQL.
_HARMLESS: Final = {"REPLICATION SLAVE", *_BINLOG_RIGHTS[1]}


def check_rights(
    check: str,
    engine: MysqlEngine,
    connection: Connection,
    purpose: Purpose,
    plan: Plan,
    *,
    binlog: bool,
) -> Iterator[Finding]:
    """Check the rights of the user of a connection. Nothing is created or changed.

    Args:
      check: the name of the check.
      purpose: the option that names the database.
      plan: the bundles and tables that the broker is to have.
      binlog: whether the broker is to read the binary log of the server.
    """
    rights = rights_of(connection)
    database = str(connection.execute("SELECT CAST(DATABASE() AS CHAR)").rows[0][0])
    if purpose == "log":
        found = list(_log(check, engine, connection, rights, database, plan))
    else:
        check_purpose = {"outbox": _outbox, "tables": _tables}[purpose]
        found = list(check_purpose(check, engine, connection, rights, database))
    if binlog and purpose != "log":
        found += _binlog(check, rights)
    found += _too_many(check, rights, purpose, database)
    yield from found or [ok(check, f"the user {rights.user} has the rights that it needs")]


def _log(
    check: str,
    engine: MysqlEngine,
    connection: Connection,
    rights: Rights,
    database: str,
    plan: Plan,
) -> Iterator[Finding]:
    missing = rights.missing(LOG_RIGHTS, database)
    if missing:
        yield _lacks(check, rights, missing, database, "the broker does not start", fatal=True)
    if not rights.missing(_DDL_RIGHTS, database):
        return
    try:
        outdated = next(schema.pending(engine, connection), None) is not None
    except StorageError as failure:
        yield error(check, str(failure), "Use a database and a program that fit.")
        return
    if outdated and not rights.has_role:
        text = "tables are missing, and the user may not create them"
        yield error(check, text, _migrate(plan.parallelism, plan.bundle_count))
    elif not outdated:
        yield from _table_sets(check, connection, plan)


def _table_sets(check: str, connection: Connection, plan: Plan) -> Iterator[Finding]:
    bundle_count = count_after_division(connection, plan.bundle_count)
    free = count_free(connection, plan.parallelism)
    wanted = wanted_free(connection, bundle_count)
    if free < wanted:
        text = (
            f"the user may not create tables, and {free} table sets are free: the log needs"
            f" {wanted} free sets to begin and to forget old messages"
        )
        yield warning(check, text, _migrate(plan.parallelism, bundle_count))


def _migrate(parallelism: int, bundle_count: int) -> str:
    return f"Run `{command(parallelism, bundle_count)}` with a user that may create tables."


def _outbox(
    check: str, engine: MysqlEngine, connection: Connection, rights: Rights, database: str
) -> Iterator[Finding]:
    there = tables(engine, connection)
    if OUTBOX not in there:
        text = "there is no outbox, or the user has no right to it"
        grants = " ".join(
            rights.grant(wanted, database, table) for table, wanted in _OUTBOX_RIGHTS.items()
        )
        yield warning(check, text, f"Run `escapement sql install`. Then: {grants}")
    for table, wanted in _OUTBOX_RIGHTS.items():
        missing = rights.missing(wanted, database, table) if table in there else []
        if missing:
            effect = "rows of the outbox are not moved"
            yield _lacks(check, rights, missing, database, effect, table)


def _tables(
    check: str, engine: MysqlEngine, connection: Connection, rights: Rights, database: str
) -> Iterator[Finding]:
    found = Discovery().look(connection)
    for table in found.good.values():
        missing = rights.missing(_TABLE_RIGHTS, database, table.name)
        if missing:
            effect = f"the message table {table.name} is not served"
            yield _lacks(check, rights, missing, database, effect, table.name)
        if not table.layout.is_partitioned:
            continue
        effect = f"rows of the message table {table.name} are deleted instead of whole partitions"
        missing = rights.missing(_PARTITION_RIGHTS, database, table.name)
        if missing:
            yield _lacks(check, rights, missing, database, effect, table.name)
        if rights.missing(_LOCK_RIGHT, database):
            yield _lacks(check, rights, list(_LOCK_RIGHT), database, effect)
    for name, rejection in found.rejected.items():
        yield warning(check, f"the message table {name} is not served", rejection.reason)


def _binlog(check: str, rights: Rights) -> Iterator[Finding]:
    missing = [
        names[0] for names in _BINLOG_RIGHTS if len(rights.missing(names, "*")) == len(names)
    ]
    if missing:
        yield _lacks(check, rights, missing, "*", "the binary log is not read with --binlog")


def _lacks(
    check: str,
    rights: Rights,
    missing: list[str],
    database: str,
    effect: str,
    table: str = "*",
    *,
    fatal: bool = False,
) -> Finding:
    text = f"the user {rights.user} lacks {', '.join(missing)}: {effect}"
    if rights.has_role:
        text += ", unless a role of the user grants it"
    remedy = rights.grant(missing, database, table)
    return (error if fatal else warning)(check, text, remedy)


def _too_many(check: str, rights: Rights, purpose: Purpose, database: str) -> Iterator[Finding]:
    extra = sorted(rights.everywhere() - _HARMLESS)
    if not extra:
        return
    named = "all rights" if ALL in extra else ", ".join(extra)
    wanted = LOG_RIGHTS if purpose != "tables" else _TABLE_RIGHTS
    text = f"the user {rights.user} has {named} for all databases of the server"
    remedy = (
        "Give the broker a user of its own that has rights for its database only, such as"
        f" {', '.join(wanted)} ON {database}.*."
    )
    yield warning(check, text, remedy)
