"""A read-only SQL query over messages: the command `escapement sql query`.

SQLite evaluates the query. The messages that it needs are copied into the table ``messages`` of a
private, temporary SQLite database, in batches of some megabytes. SQLite keeps what exceeds its
cache in a temporary file, so memory is bounded. SQLite reports the columns that the
query uses (``set_authorizer``), and narrowing.py finds topics, offsets and times. No other messages
and columns are read.

Messages are read as by the Spark data source: directly from the database, beside a running broker,
and from the archive. A hundred topics at a time are read as of one moment.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from escapement.errors import InvalidRequest, NotFound, StorageUnavailable
from escapement.names import TopicName, check_name
from escapement.pipeline import arrow
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.options import ADDRESS_OPTIONS, LogAddress, Options
from escapement.pipeline.query.narrowing import Narrowing, joins_by_name, narrowed
from escapement.pipeline.source.archived_reading import ArchivedPart, read_archived
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part
from escapement.storage.catalog.catalog import read_named
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.schema import require

# The columns of the table ``messages``: those of the Spark data source, and times as numbers too.
COLUMNS: Final = {
    "topic": "TEXT",
    "offset": "INTEGER",
    "deliver_at": "TEXT",
    "deliver_at_ms": "INTEGER",
    "published_at": "TEXT",
    "published_at_ms": "INTEGER",
    "key": "",
    "properties": "TEXT",
    "priority": "INTEGER",
    "attempt": "INTEGER",
    "state": "TEXT",
    "payload": "",
}
# A hundred topics are read in one snapshot of the database.
_TOPICS_AT_ONCE: Final = 100
# The size of SQLite's cache. A larger table is in a temporary file.
_CACHE_KIB: Final = 64 << 10
# The number of steps after which SQLite calls back, so that Ctrl-C ends a long query.
_STEPS: Final = 100_000
_LAST_MS: Final = 253_402_300_799_999  # the last millisecond of the year 9999
# The actions that a query may take. All others are refused.
_ALLOWED: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and which messages it sees.

    Args:
      source: the data source's options for the address of the log.
      sql: one SELECT in the SQL of SQLite.
      topics: names of topics; empty for all.
      subscription: the subscription whose states and attempts are read, in the topics that have
        it; None for the states in the topics.
      archived: whether archived messages are read that the log has forgotten.
    """

    source: dict[str, str]
    sql: str
    topics: Sequence[str] = ()
    subscription: str | None = None
    archived: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a query: the names of its columns, and its rows, which can be read once."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def run(query: Query) -> Iterator[Result]:
    """Run a query, and yield its result.

    Raises:
      InvalidRequest: if the SQL is wrong or would do more than read, or the log has no address.
      NotFound: if a topic or the subscription does not exist.
      LogForgotten: if the log has forgotten messages while they were read.
      StorageUnavailable: if the database cannot be reached.
    """
    Options(query.source).check(ADDRESS_OPTIONS)
    with closing(sqlite3.connect("", isolation_level=None)) as scratch:
        scratch.execute("PRAGMA journal_mode = OFF")
        scratch.execute("PRAGMA synchronous = OFF")
        scratch.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        named = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
        scratch.execute(f"CREATE TABLE messages ({named})")
        used = _checked(scratch, query.sql)
        if used is not None:
            with _in_our_words():
                _load(scratch, query, used)
        with _guarded(scratch) as refused, _in_our_words(refused):
            cursor = scratch.execute(query.sql)
            names = [column[0] for column in cursor.description or ()]
            with closing(_rows(cursor)) as rows:
                yield Result(names, rows)


def _rows(cursor: sqlite3.Cursor) -> Generator[tuple[Any, ...], None, None]:
    with _in_our_words():
        yield from cursor


# -- what the query uses ---------------------------------------------------------


def _checked(scratch: sqlite3.Connection, sql: str) -> list[str] | None:
    """Return the columns of ``messages`` that the query uses; None if it uses no messages.

    Raises:
      InvalidRequest: if the SQL is wrong, or would do more than read.
    """
    with _guarded(scratch) as refused, _in_our_words(refused):
        used: set[str] = set()

        def note(action: int, table: str | None, column: str | None) -> None:
            if action == sqlite3.SQLITE_READ and table == "messages":
                used.add(column or "")

        _guard(scratch, refused, note)
        # EXPLAIN compiles the query and does not run it.
        scratch.execute(f"EXPLAIN {sql}").close()
    if "messages" not in sql.lower():
        return None
    # SQLite does not report the columns by which USING and NATURAL JOIN join tables.
    return [name for name in COLUMNS if name in used or joins_by_name(sql)]


Note = Callable[[int, str | None, str | None], None]


@contextmanager
def _guarded(scratch: sqlite3.Connection) -> Iterator[list[str]]:
    """Let SQLite refuse all but reads in the ``with`` block. Yields the list of refusals."""
    refused: list[str] = []
    _guard(scratch, refused)
    scratch.set_progress_handler(lambda: 0, _STEPS)
    try:
        yield refused
    finally:
        scratch.set_progress_handler(None, 0)
        scratch.set_authorizer(None)


def _guard(scratch: sqlite3.Connection, refused: list[str], note: Note | None = None) -> None:
    def authorize(action: int, one: str | None, two: str | None, *_: Any) -> int:
        function = (two or "").lower() if action == sqlite3.SQLITE_FUNCTION else ""
        if action not in _ALLOWED or function == "load_extension":
            refused.append(one or two or "")
            return sqlite3.SQLITE_DENY
        if note is not None:
            note(action, one, two)
        return sqlite3.SQLITE_OK

    scratch.set_authorizer(authorize)


@contextmanager
def _in_our_words(refused: Sequence[str] = ()) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        if "interrupted" in str(error):
            raise KeyboardInterrupt from None
        if refused:
            raise InvalidRequest(
                "a query may only read: give one SELECT over the table messages"
            ) from None
        if "disk is full" in str(error) or "disk I/O" in str(error):
            raise StorageUnavailable(
                f"the temporary file of the query: {error}. Narrow the query by topic, offset or"
                " time, or set SQLITE_TMPDIR to a directory with more space"
            ) from None
        hint = f"; the columns are {', '.join(COLUMNS)}" if "no such column" in str(error) else ""
        raise InvalidRequest(f"the query is wrong: {error}{hint}") from None


# -- loading messages ------------------------------------------------------------


def _load(scratch: sqlite3.Connection, query: Query, used: Sequence[str]) -> None:
    """Copy the messages that the query needs into the table ``messages``."""
    wanted = narrowed(query.sql)
    used = used or ["offset"]  # a query such as count(*) uses no column, and needs the rows
    read = list(dict.fromkeys(name.removesuffix("_ms") for name in used))
    assert set(read) <= set(READ_COLUMNS)
    schema = arrow.arrow_schema([(name, True) for name in read])
    columns = ", ".join(f'"{name}"' for name in used)
    insert = f"INSERT INTO messages ({columns}) VALUES ({', '.join('?' * len(used))})"
    with LogAddress.of(Options(query.source)).connected() as (engine, connection):
        require(connection)
        topics = _topics(connection, query, wanted)
        while topics:
            try:
                plan = _plan(query, wanted, topics[:_TOPICS_AT_ONCE], read)
                parts = plan.parts()
            except NotFound:
                # A topic or a subscription was deleted meanwhile. It is not listed any more.
                there = set(_topics(connection, query, wanted))
                left = [topic for topic in topics if topic in there]
                if len(left) == len(topics):
                    raise
                topics = left
                continue
            topics = topics[_TOPICS_AT_ONCE:]
            scratch.execute("BEGIN")
            for part in parts:
                for batch in _batches(engine, part, schema):
                    values = [_values(batch, name) for name in used]
                    scratch.executemany(insert, zip(*values, strict=True))
            scratch.execute("COMMIT")


def _batches(engine: Engine, part: Any, schema: Any) -> Iterator[Any]:
    if isinstance(part, ArchivedPart):
        return read_archived(part, schema)
    return read_part(engine, part, schema)


def _plan(
    query: Query, wanted: Narrowing, topics: Sequence[str], columns: Sequence[str]
) -> BatchPlan:
    options = query.source | {
        "topics": ",".join(topics),
        "archived": "true" if query.archived else "false",
    }
    if query.subscription is not None:
        options["subscription"] = query.subscription
    plan = BatchPlan(Options(options), columns)
    plan.selection = wanted.selection
    return plan


def _topics(connection: Connection, query: Query, wanted: Narrowing) -> list[str]:
    """Return the full names of the topics to read, in order.

    Raises:
      NotFound: if a topic that the caller names does not exist, or no topic has the subscription.
    """
    records = {name.full: record for name, record in read_named(connection, 0)}
    asked = [TopicName.parse(name).full for name in query.topics]
    for name in asked:
        if name not in records:
            raise NotFound(f"topic {name} does not exist")
    if query.subscription is not None:
        check_name("subscription", query.subscription)
        rows = connection.execute(
            "SELECT topic_id FROM subscriptions WHERE name = ?", (query.subscription,)
        ).rows
        having = {id for (id,) in rows}
        records = {name: record for name, record in records.items() if record.id in having}
        if not records:
            raise NotFound(f"no topic has a subscription {query.subscription}")
    found = set(records)
    if asked:
        found &= set(asked)
    if wanted.topics is not None:
        found &= wanted.topics
    return sorted(found)


def _values(batch: Any, name: str) -> list[Any]:
    """Return a column of ``messages`` as values for SQLite."""
    column = batch.column(name.removesuffix("_ms"))
    if name.startswith(("deliver_at", "published_at")):
        times_ms = arrow.values_of(column, np.int64) // 1000
        if name.endswith("_ms"):
            return list(times_ms.tolist())
        texts = np.datetime_as_string(
            np.minimum(times_ms, _LAST_MS).astype("datetime64[ms]"), unit="ms"
        )
        return [text.replace("T", " ") for text in texts.tolist()]
    values: list[Any] = column.to_pylist()
    if name in ("key", "payload"):
        return [_text(value) for value in values]
    if name == "properties":
        return [json.dumps(dict(value), ensure_ascii=False) for value in values]
    return values


def _text(value: bytes | None) -> str | bytes | None:
    """Return a byte string as text if it is UTF-8, otherwise unchanged."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
