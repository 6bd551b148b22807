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
from escapement.storage.engine.base import Connection
from escapement.storage.engine.existing import tables
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.mysql.rights import ALL, Rights, rights_of
from escapement.storage.log.table_sets import count_free
from escapement.storage.outbox.ack_table import ACKS
from escapement.storage.outbox.tables import IDENTITY, MAPPING, OUTBOX, REFUSED
from escapement.tables.discovery import Discovery

# The option of `escapement serve` that names a database.
Purpose = Literal["log", "outbox", "tables"]

# The log needs these in any case.
LOG_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
# With these a broker creates, upgrades and drops its tables itself.
_DDL_RIGHTS: Final = ("CREATE", "ALTER", "DROP", "CREATE VIEW")
# A new generation of the log takes one set, and the forgetter frees one later.
_FEWEST_SETS: Final = 2
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
    check: str, engine: MysqlEngine, connection: Connection, purpose: Purpose, *, binlog: bool
) -> Iterator[Finding]:
    """Check the rights of the user of a connection. Nothing is created or changed.

    Args:
      check: the name of the check.
      purpose: the option that names the database.
      binlog: whether the broker is to read the binary log of the server.
    """
    rights = rights_of(connection)
    database = str(connection.execute("SELECT CAST(DATABASE() AS CHAR)").rows[0][0])
    check_purpose = {"log": _log, "outbox": _outbox, "tables": _tables}[purpose]
    found = list(check_purpose(check, engine, connection, rights, database))
    if binlog and purpose != "log":
        found += _binlog(check, rights)
    found += _too_many(check, rights, purpose, database)
    yield from found or [ok(check, f"the user {rights.user} has the rights that it needs")]


def _log(
    check: str, engine: MysqlEngine, connection: Connection, rights: Rights, database: str
) -> Iterator[Finding]:
    missing = rights.missing(LOG_RIGHTS, database)
    if missing:
        yield _lacks(check, rights, missing, database, "the broker does not start", fatal=True)
    if not rights.missing(_DDL_RIGHTS, database):
        return
    remedy = "Run `escapement migrate` with a user that may create tables."
    try:
        outdated = next(schema.pending(engine, connection), None) is not None
    except StorageError as failure:
        yield error(check, str(failure), "Use a database and a program that fit.")
        return
    if outdated and not rights.has_role:
        yield error(check, "tables are missing, and the user may not create them", remedy)
    elif not outdated and count_free(connection) < _FEWEST_SETS:
        text = (
            "the user may not create tables, and fewer than two table sets are free: the log"
            " cannot forget old messages soon"
        )
        yield warning(check, text, remedy)


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
