"""The outbox in the database of an application: reading, locking and deleting its rows.

One object has one connection to that database, in READ COMMITTED. All calls block, and come from
one thread at a time. The order of calls is ``attach`` → ``settle`` → ``take`` → ``finish`` →
``take`` → ``finish`` …. After any error the connection is closed, which rolls back the open
transaction, and ``attach`` begins again.

``take`` reads in two steps, so that the rows of one key keep their order. The first step is one
consistent read without locks. It sees a row only together with all rows that were committed before
that row was inserted. The second step locks the rows that the first step has seen, and skips rows
that other sessions have locked. A single locking read could pass a row that is not committed yet,
and then find a row that was inserted after the commit of the first. If a row is skipped, the rows
of the same key behind it are left too, and requests that may name it.

No statement locks a gap between rows, or waits for rows that are not committed. So applications
never wait to insert, and the relay never waits for an open transaction of an application.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.errors import StorageUnavailable
from escapement.message import DEFAULT_PRIORITY, cuts
from escapement.storage.engine.base import Connection, Engine, Row
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.outbox.record import DIGEST_BYTES, MovedRow, Record
from escapement.storage.outbox.tables import (
    IDENTITY,
    MAX_MESSAGE_BYTES,
    MAX_REASON_CHARS,
    OUTBOX,
    REFUSED,
)

# The most rows of one batch.
MAX_ROWS: Final = 4_096
# The most bytes of one batch, unless a single row is larger.
MAX_BYTES: Final = 1 << 20
# The most topics of one batch. Each costs the log some statements, and an append.
MAX_TOPICS: Final = 200
# An estimate of the bytes of a row besides its payload, key and headers.
_ROW_BYTES: Final = 64
# How long to wait until the server has ended the connection of an earlier relay.
_LOCK_WAIT_S: Final = 5

_SIZE: Final = "COALESCE(payload_bytes, 0) + COALESCE(OCTET_LENGTH(headers), 0)"
_LOOK: Final = (
    f'SELECT id, CAST("key" AS CHAR), {_SIZE}, CAST(dedup_key AS CHAR),'
    f" CASE WHEN action IS NOT NULL THEN CAST(topic AS CHAR) END FROM {OUTBOX}"
    f" ORDER BY id LIMIT {MAX_ROWS}"
)
# The payload and the headers of a row that is too large are not read. An operator may have given
# columns other types, such as LONGTEXT for the payload, so each value is converted.
_FITS: Final = f"{_SIZE} <= {MAX_MESSAGE_BYTES}"
_READ: Final = (
    'SELECT id, CAST(topic AS CHAR), CAST("key" AS CHAR),'
    f" CASE WHEN {_FITS} THEN CAST(payload AS BINARY) END,"
    f" CASE WHEN {_FITS} THEN CAST(headers AS CHAR) END,"
    " TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at),"
    " CAST(dedup_key AS CHAR), CAST(priority AS SIGNED), CAST(action AS CHAR)"
    f" FROM {OUTBOX} FORCE INDEX (PRIMARY) WHERE id {{ids}} ORDER BY id FOR UPDATE"
)
# For a list of ids, the server may scan the whole table, and wait for rows of open transactions. So
# the ids are a table that is read first, and each row is found by its primary key.
_DELETE: Final = (
    "DELETE o FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS ids"
    f" STRAIGHT_JOIN {OUTBOX} AS o FORCE INDEX (PRIMARY) ON o.id = ids.id"
)
_INCOMPLETE: Final = "{}: no complete outbox is there; create it with `escapement sql install`"
_KEPT: Final = 'id, topic, "key", payload, headers, due_at, dedup_key, priority, action'


class OutboxRow(NamedTuple):
    """A row of an outbox. ``payload`` is None if it is NULL, or the row is too large.

    ``action`` is None for a message.
    """

    id: int
    topic: str
    key: str
    payload: bytes | None
    headers: str | None
    due_ms: int | None
    dedup_key: str | None
    priority: int
    action: str | None

    @classmethod
    def of(cls, row: Row) -> OutboxRow:
        """Return a row as ``_READ`` selects it. Its due time is rounded up to milliseconds."""
        id, topic, key, payload, headers, due_us, dedup_key, priority, action = row
        return cls(
            int(id),
            _text(topic or ""),
            _text(key or ""),
            None if payload is None else bytes(payload),
            None if headers is None else _text(headers),
            None if due_us is None else -(-int(due_us) // 1000),
            None if dedup_key is None else _text(dedup_key),
            DEFAULT_PRIORITY if priority is None else int(priority),
            None if action is None else _text(action),
        )

    def moved(self) -> MovedRow:
        """Return the id and the digest under which the record of the outbox has this row."""
        found = blake2b(digest_size=DIGEST_BYTES)
        payload = self.payload or b""
        found.update(repr((self._replace(payload=None), len(payload))).encode())
        found.update(payload)
        return MovedRow(self.id, found.digest())


class Outbox(NamedTuple):
    """An attached outbox: its random id, and the last batch whose rows are deleted."""

    identity: bytes
    batch: int


class OutboxInApplication:
    """One outbox in the database of an application.

    Args:
      engine: the database of the application.
      log: the id of the log that the outbox belongs to.
      served: the outboxes that this broker serves, by their random ids. They share this dict.
    """

    def __init__(
        self, engine: Engine, log: bytes, served: dict[bytes, OutboxInApplication]
    ) -> None:
        self._engine = engine
        self._log = log
        self._served = served
        self._identity = b""
        self._connection: Connection | None = None

    @property
    def location(self) -> str:
        return self._engine.location

    def close(self) -> None:
        """Close the connection, if it is open. The open transaction is rolled back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the beginning -------------------------------------------------------------

    def attach(self) -> Outbox:
        """Connect, claim the outbox for the log, and end the connection of an earlier relay.

        Raises:
          StorageUnavailable: if the outbox does not exist, belongs to another log, or is served by
            this broker under another address.
        """
        self.close()
        self._connection = connection = self._engine.connect()
        tables = connection.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()"
            f" AND table_name IN ('{OUTBOX}', '{REFUSED}', '{IDENTITY}')"
        ).rows[0][0]
        if tables < 3:
            raise StorageUnavailable(_INCOMPLETE.format(self.location))
        identity = self._claimed().identity
        if (other := self._served.setdefault(identity, self)) is not self:
            raise StorageUnavailable(
                f"{self.location}: this broker serves the outbox already, at {other.location}"
            )
        # Take over before any statement that waits for the locks of an earlier relay.
        self._take_over(identity)
        connection.execute(
            f"UPDATE {IDENTITY} SET log = ? WHERE one = 1 AND log IS NULL", (self._log,)
        )
        found = self._claimed()
        self._identity = found.identity
        return found

    def _claimed(self) -> Outbox:
        """Return the outbox. Raise ``StorageUnavailable`` if another log has claimed it."""
        found = self._open.execute(f"SELECT identity, log, batch FROM {IDENTITY}").rows
        if not found:
            raise StorageUnavailable(_INCOMPLETE.format(self.location))
        identity, log, batch = found[0]
        if log is not None and bytes(log) != self._log:
            raise StorageUnavailable(
                f"the outbox of {self.location} belongs to the log {bytes(log).hex()}, and this "
                f"broker has the log {self._log.hex()}; if it shall move to this log, stop the "
                "other broker and use `escapement sql reset`"
            )
        return Outbox(bytes(identity), int(batch))

    def _take_over(self, identity: bytes) -> None:
        """Take the lock of the outbox, and end the connection that holds it.

        The holder is the relay of an earlier broker, perhaps one that hangs. Its locks on rows
        would make this relay move later rows of a key before them.
        """
        lock = f"'escapement.outbox.{identity.hex()}'"
        if self._value(f"SELECT GET_LOCK({lock}, 0)") == 1:
            return
        holder = self._value(f"SELECT IS_USED_LOCK({lock})")
        if holder is not None:
            self._engine.kill([int(holder)])
        if self._value(f"SELECT GET_LOCK({lock}, {_LOCK_WAIT_S})") != 1:
            raise StorageUnavailable(
                f"{self.location}: connection {holder} of another broker holds the outbox"
            )

    def settle(self, outbox: Outbox, record: Record) -> list[int]:
        """Delete the rows of the last batch, if that has not happened yet.

        Waits for rows that other sessions have locked.

        Returns:
          The ids of rows that have another content than the moved rows of these ids. They are not
          deleted, because they are new rows: the database was restored, and uses the ids again.

        Raises:
          StorageUnavailable: if the database or the log was restored to an earlier time.
          TransactionAborted: if another session holds a row for too long.
        """
        if outbox.batch == record.batch:
            return []
        if outbox.batch != record.batch - 1:
            raise StorageUnavailable(
                f"the outbox of {self.location} ends with batch {outbox.batch}, and the log with "
                f"batch {record.batch}: one of them was restored to an earlier time, or replaced. "
                "Decide whether rows that are in the outbox again shall be sent again, delete the "
                "others, and use `escapement sql reset`"
            )
        self._begin()
        wanted = dict(record.rows)
        rows = [row.moved() for row in self._read(list(wanted), wait=True)]
        self._delete([row.id for row in rows if wanted[row.id] == row.digest])
        self._end(record.batch)
        return [row.id for row in rows if wanted[row.id] != row.digest]

    # -- batches -------------------------------------------------------------------

    def take(self) -> tuple[list[OutboxRow], bool]:
        """Open a transaction, and lock and return the next rows in the order of their ids.

        If there are none, no transaction is open.

        Returns:
          The rows, and whether further rows probably follow.
        """
        seen = self._open.execute(_LOOK).rows
        if not seen:
            return [], False
        sizes = np.array([_weight(size, key) for _, key, size, *_ in seen], np.int64)
        _, end = next(cuts(sizes, MAX_BYTES, MAX_ROWS))
        self._begin()
        locked = {row.id: row for row in self._read([int(row[0]) for row in seen[:end]])}
        found = _in_order(seen[:end], locked)
        rows = _of_few_topics(found)
        if not rows:
            self._open.rollback()
        more = end < len(seen) or end == MAX_ROWS or len(rows) < len(found)
        return rows, bool(rows) and more

    def finish(
        self, rows: Sequence[OutboxRow], refused: Sequence[tuple[int, str]], batch: int
    ) -> None:
        """Delete the rows that ``take`` has returned, and commit.

        Args:
          refused: ids of rows among them to be kept as refused, each with the reason.
          batch: the number of the last batch in the log.

        Raises:
          OutcomeUnknown: if the connection was lost during the commit.
        """
        for id, reason in refused:
            # IGNORE shortens values that do not fit, if an operator has given columns other types.
            kept = self._open.execute(
                f"INSERT IGNORE INTO {REFUSED} (refused_at, reason, {_KEPT})"
                f" SELECT UTC_TIMESTAMP(3), ?, {_KEPT} FROM {OUTBOX} WHERE id = ?",
                (reason[:MAX_REASON_CHARS], id),
            )
            if kept.affected != 1:
                raise StorageUnavailable(f"{self.location}: {REFUSED} does not take row {id}")
        self._delete([row.id for row in rows])
        self._end(batch)

    def _begin(self) -> None:
        """Open a transaction, and lock the identity of the outbox, so that no reset comes between.

        Raises:
          StorageUnavailable: if the outbox has another identity, because it was reset.
        """
        self._open.begin()
        sql = f"SELECT batch FROM {IDENTITY} WHERE one = 1 AND identity = ? FOR UPDATE"
        if not self._open.execute(sql, (self._identity,)).rows:
            raise StorageUnavailable(f"{self.location}: the outbox was reset")

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise StorageUnavailable(f"{self.location}: the connection is closed")
        return self._connection

    def _value(self, sql: str) -> Any:
        return self._open.execute(sql).rows[0][0]

    def _read(self, ids: Sequence[int], wait: bool = False) -> list[OutboxRow]:
        """Lock the rows with these ids and return them, in the order of their ids.

        Args:
          wait: wait for rows that other sessions have locked, instead of skipping them.
        """
        sql = _READ if wait else f"{_READ} SKIP LOCKED"
        return [
            OutboxRow.of(row)
            for some in padded(ids)
            for row in self._open.execute(sql.format(ids=in_list(some)), some).rows
        ]

    def _delete(self, ids: Sequence[int]) -> None:
        """Delete rows that this transaction has locked."""
        deleted = self._open.execute(_DELETE, (json.dumps(list(ids)),)).affected
        if deleted != len(ids):
            raise StorageUnavailable(
                f"{self.location}: {len(ids) - deleted} rows that this transaction has locked are "
                "gone"
            )

    def _end(self, batch: int) -> None:
        """Note that no row of a batch is left, and commit."""
        noted = self._open.execute(f"UPDATE {IDENTITY} SET batch = ? WHERE one = 1", (batch,))
        if noted.affected != 1:
            raise StorageUnavailable(_INCOMPLETE.format(self.location))
        self._open.commit()


def _weight(size_bytes: int, key: str | None) -> int:
    """Return the bytes that a row takes in a batch. A row that is too large is not read."""
    return _ROW_BYTES + len(key or "") + (size_bytes if size_bytes <= MAX_MESSAGE_BYTES else 0)


def _in_order(seen: Sequence[Row], locked: dict[int, OutboxRow]) -> list[OutboxRow]:
    """Return the locked rows, but no row behind a related one that is not locked.

    Rows with the same key are related, and rows with the same dedup key. A request to cancel or
    reschedule is also related to all requests of its topic, because they may name the same message
    in other ways.

    Args:
      seen: id, key, size, dedup key of each row that was to be locked, and the topic if the row is
        a request; in the order of their ids.
    """
    rows: list[OutboxRow] = []
    passed: set[tuple[str, str]] = set()
    for id, key, _, dedup_key, topic in seen:
        row = locked.get(int(id))
        if row is not None and not passed:
            rows.append(row)
            continue
        named = zip(("key", "dedup key", "topic"), (key, dedup_key, topic), strict=True)
        marks = {(name, _text(value)) for name, value in named if value}
        if row is None or not passed.isdisjoint(marks):
            passed |= marks
        else:
            rows.append(row)
    return rows


def _of_few_topics(rows: list[OutboxRow]) -> list[OutboxRow]:
    """Return the rows before the first one that would be of another topic than ``MAX_TOPICS``."""
    topics: set[str] = set()
    for at, row in enumerate(rows):
        topics.add(row.topic)
        if len(topics) > MAX_TOPICS:
            return rows[:at]
    return rows


def _text(value: str | bytes | memoryview) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
