"""The database views for people who read the broker's database with SQL.

The views are ``escapement_topics``, ``escapement_subscriptions`` and ``escapement_pending``. They
decode what the catalog has: full names, times as UTC, and the fields of policies. Their columns
follow the policy classes, so they are not part of a migration. A broker creates them when it
starts. The table ``created_views`` has a checksum of each, so that a start changes no view that is
up to date.

A view reads only tables that stay. The tables of the log come and go with their generations, and
without an index for times, a view over them would read the whole log. `escapement sql query` reads
messages.

The broker itself does not use the views. If it may not create them, it logs a warning and starts
without them. The views have the rights of their reader (SQL SECURITY INVOKER), so a dump of the
database can be restored by another user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from typing import Any, Final

from escapement.errors import StorageError
from escapement.event_log import EventLog
from escapement.storage.catalog.policy import Policy, SubscriptionPolicy, TopicPolicy
from escapement.storage.engine import existing
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.engine.transaction import transaction

_log = EventLog(__name__)

# The first millisecond after the year 9999, the last year that MySQL and SQLite can write.
_END_MS: Final = 253_402_300_800_000
# A time in Unix milliseconds as UTC, whatever the time zone of the reader is.
_UTC: Final = {
    "mysql": "CAST(CAST('1970-01-01' AS DATETIME(3)) + INTERVAL ({0} * 1000) MICROSECOND"
    " AS DATETIME(3))",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', {0} / 1000.0, 'unixepoch')",
}
# A field of a policy by the type of its values. NULL if it has its default. A policy in which all
# fields have their defaults is an empty text, which is not JSON.
_MYSQL_FIELD: Final = "JSON_UNQUOTE(JSON_EXTRACT(NULLIF({0}.policy, ''), '$.{1}'))"
_SQLITE_FIELD: Final = "json_extract(NULLIF({0}.policy, ''), '$.{1}')"
_FIELD: Final[dict[str, dict[type, str]]] = {
    "mysql": {
        str: _MYSQL_FIELD,
        int: f"CAST({_MYSQL_FIELD} AS SIGNED)",
        float: f"CAST({_MYSQL_FIELD} AS DOUBLE)",
        bool: f"({_MYSQL_FIELD} = 'true')",
    },
    "sqlite": {
        str: _SQLITE_FIELD,
        int: _SQLITE_FIELD,
        float: f"CAST({_SQLITE_FIELD} AS REAL)",
        bool: _SQLITE_FIELD,
    },
}
_NAMESPACE: Final = "n.tenant || '/' || n.name"
_TOPIC: Final = f"{_NAMESPACE} || '/' || t.name"
# Topics with their namespaces, except those whose namespace is being deleted.
_TOPICS: Final = (
    "topics t JOIN namespaces n ON n.id = t.namespace_id AND NOT EXISTS"
    " (SELECT 1 FROM removals r WHERE r.kind = 'namespace' AND r.id = n.id)"
)
_SUBSCRIPTIONS: Final = f"{_TOPICS} JOIN subscriptions s ON s.topic_id = t.id"
# The messages before the start of an exclusive or failover subscription do not count, as in
# ``Topic.unacknowledged`` (broker/topic/topic.py).
_UNACKNOWLEDGED: Final = (
    "t.next_offset - s.finished_count - CASE WHEN s.kind = 'shared' THEN 0"
    " WHEN s.start_offset < t.next_offset THEN s.start_offset ELSE t.next_offset END"
)


def create_views(engine: Engine) -> None:
    """Create the views that are missing or have an older definition. Quick if there are none.

    Call it after the schema is migrated. If the database refuses to create a view, for example
    because the user has no right to, it logs a warning with advice.

    Raises:
      StorageUnavailable: if the database cannot be reached.
    """
    with closing(engine.connect()) as connection:
        try:
            _create(engine, connection)
        except StorageError as error:
            if type(error) not in (StorageError, TransactionAborted):
                raise
            _log.warning(
                "database.views_missing",
                "The views for SQL cannot be created, and the broker starts without them. If its"
                " user has no right to create views, run `escapement migrate` with a user that"
                " has, or GRANT CREATE VIEW ON the database and restart the broker. The reason: %s",
                error,
            )


def definitions(kind: str) -> dict[str, str]:
    """Return the SELECT of each view by name, for one kind of database engine."""
    return {
        "escapement_topics": _select(
            _TOPICS,
            {
                "topic": _TOPIC,
                "namespace": _NAMESPACE,
                "topic_id": "t.id",
                **_time(kind, "created_at", "created_at_ms", "t.created_at_ms"),
                "next_offset": "t.next_offset",
                "delays_enabled": "n.delays_enabled",
                **_policy(kind, "t", TopicPolicy),
            },
        ),
        "escapement_subscriptions": _select(
            _SUBSCRIPTIONS,
            {
                "topic": _TOPIC,
                "subscription": "s.name",
                "subscription_id": "s.id",
                "kind": "s.kind",
                **_time(kind, "created_at", "created_at_ms", "s.created_at_ms"),
                "start_offset": "s.start_offset",
                **_time(kind, "start_due", "start_due_ms", "s.start_due_ms"),
                "is_filling": "CASE WHEN s.fill_from < s.fill_until THEN 1 ELSE 0 END",
                **_policy(kind, "s", SubscriptionPolicy),
            },
        ),
        "escapement_pending": _select(
            _SUBSCRIPTIONS,
            {
                "topic": _TOPIC,
                "subscription": "s.name",
                "kind": "s.kind",
                "next_offset": "t.next_offset",
                "unacknowledged": _UNACKNOWLEDGED,
            },
        ),
    }


def pending(engine: Engine, connection: Connection) -> Iterator[list[str]]:
    """Yield the SQL statements of each view that is missing or has an older definition."""
    recorded: dict[str, str] = {}
    if "created_views" in existing.tables(engine, connection):
        recorded = dict(connection.execute("SELECT name, checksum FROM created_views").rows)
    there = existing.views(engine, connection)
    for name, select in definitions(engine.kind).items():
        checksum = hashlib.sha256(select.encode()).hexdigest()
        if name in there and recorded.get(name) == checksum:
            continue
        if engine.kind == "mysql":
            creation = [f"CREATE OR REPLACE SQL SECURITY INVOKER VIEW {name} AS {select}"]
        else:
            creation = [f"DROP VIEW IF EXISTS {name}", f"CREATE VIEW {name} AS {select}"]
        record = f"REPLACE INTO created_views (name, checksum) VALUES ('{name}', '{checksum}')"
        yield [*creation, record]


def _create(engine: Engine, connection: Connection) -> None:
    for statements in pending(engine, connection):
        # On MySQL each CREATE commits by itself. After a crash before the record, it is done again.
        with transaction(connection):
            for statement in statements:
                connection.execute(statement)


def _select(tables: str, columns: dict[str, str]) -> str:
    named = ", ".join(f'{sql} AS "{name}"' for name, sql in columns.items())
    return f"SELECT {named} FROM {tables}"


def _time(kind: str, name: str, name_ms: str, sql: str) -> dict[str, str]:
    """Return the two columns of a time: UTC, NULL if it is none, and Unix milliseconds."""
    utc = _UTC[kind].format(sql)
    return {
        name: f"CASE WHEN {sql} > 0 AND {sql} < {_END_MS} THEN {utc} ELSE NULL END",
        name_ms: sql,
    }


def _policy(kind: str, table: str, policy: type[Policy]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for name, default in _defaults(policy):
        stored = _FIELD[kind][type(default)].format(table, name)
        value = f"COALESCE({stored}, {_literal(default)})"
        if name.endswith("_until_ms"):
            columns |= _time(kind, name.removesuffix("_ms"), name, value)
        else:
            columns[name] = value
    return columns


def _defaults(policy: type[Policy]) -> Iterator[tuple[str, Any]]:
    names = policy.names()
    return ((one.name, one.default) for one in fields(policy) if one.name in names)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return str(int(value) if isinstance(value, bool) else value)
