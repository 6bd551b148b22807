"""An outbox in the database of an application: reading and locking its rows, and making them done.

A mapping says which table the outbox is, and how a row is *done*: deleted, or with another value in
one column. ``escapement_outbox`` is one mapping among others. Rows that are done are never read.

One object has one connection to that database, in READ COMMITTED. All calls block, and come from
one thread at a time. The order of calls is ``attach`` → ``settle`` → ``take`` → ``finish`` →
``take`` → ``finish`` …. After any error the connection is closed, which rolls back the open
transaction, and ``attach`` begins again.

``take`` reads in two steps, so that the rows of one key keep their order. The first step is one
consistent read without locks. It sees a row only together with all rows that were committed before
that row was inserted. The second step locks the rows that the first step has seen, and skips rows
that other sessions have locked. A single locking read could pass a row that is not committed yet,
and then find a row that was inserted after the commit of the first. If a row is skipped, the rows
of the same key behind it are left too, and requests that may name it. The second step also skips
rows that are done since the first, for example because the application has set the column itself.

The second step takes a *slice* of the rows seen, as many as fit into a batch. If it can use none of
them, it goes on with the next slice. If it can use no row at all, ``take`` repeats both steps for
more rows. It never continues behind the last row of another look: rows of a key may have been
committed in between, the first of them before that row, and the second behind it.

No statement locks a gap between rows, or waits for rows that are not committed. So applications
never wait to insert, and the relay never waits for an open transaction of an application.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import numpy as np

from escapement.errors import InvalidRequest, StorageUnavailable
from escapement.message import cuts
from escapement.storage.engine.base import Connection, Engine, Row
from escapement.storage.engine.named_lock import take_over
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.outbox.mapping import OURS, OutboxMapping
from escapement.storage.outbox.mapping_table import checked
from escapement.storage.outbox.record import Record, RowId
from escapement.storage.outbox.row import OutboxRow, text
from escapement.storage.outbox.statements import MAX_ROWS, Statements
from escapement.storage.outbox.tables import (
    IDENTITY,
    MAX_MESSAGE_BYTES,
    MAX_REASON_CHARS,
    OUTBOX,
    REFUSED,
)

T = TypeVar("T")

# Rows with a common mark are related: the name of a column, and its value.
_Mark = tuple[str, str]

# The highest id of a row. Parameters of statements are signed numbers of 64 bits.
_MAX_ID: Final = 2**63 - 1
# The most bytes of one batch, unless a single row is larger.
MAX_BYTES: Final = 1 << 20
# The most topics of one batch. Each costs the log some statements, and an append.
MAX_TOPICS: Final = 200
# How many times the rows of a usual look the second look has, if the first has found no usable row.
FAR: Final = 16
# The most slices of one look. It bounds the time of a look when locked rows are large.
MAX_SLICES: Final = 100
# An estimate of the bytes of a row besides its payload, key and headers.
_ROW_BYTES: Final = 64

_INCOMPLETE: Final = "{}: no complete outbox is there; create it with `escapement sql install`"


class Outbox(NamedTuple):
    """An attached outbox.

    Attributes:
      identity: its random id.
      batch: the last batch whose rows are done.
      mapping: the mapping of the batch after it, if it has been moved, as JSON; None: any mapping.
    """

    identity: bytes
    batch: int
    mapping: str | None


class OutboxInApplication:
    """One outbox in the database of an application.

    Args:
      engine: the database of the application.
      log: the id of the log that the outbox belongs to.
      served: the outboxes that this broker serves, by their random ids. They share this dict.
      mapping: the table, and how its rows become messages.
    """

    def __init__(
        self,
        engine: Engine,
        log: bytes,
        served: dict[bytes, OutboxInApplication],
        mapping: OutboxMapping = OURS,
    ) -> None:
        self._engine = engine
        self._log = log
        self._served = served
        self._mapping = mapping
        self._statements: Statements | None = None
        self._identity = b""
        self._connection: Connection | None = None

    @property
    def location(self) -> str:
        """The address of the database, and the table unless it is ``escapement_outbox``."""
        where = self._engine.location
        return where if self._mapping == OURS else f"{where}, table {self._mapping.table}"

    def close(self) -> None:
        """Close the connection, if it is open. The open transaction is rolled back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def leave(self) -> None:
        """Close the connection, and let another object serve the outbox."""
        self.close()
        if self._served.get(self._identity) is self:
            del self._served[self._identity]

    # -- the beginning -------------------------------------------------------------

    def attach(self) -> Outbox:
        """Connect, claim the outbox for the log, and end the connection of an earlier relay.

        Raises:
          StorageUnavailable: if the outbox does not exist, does not fit its mapping, belongs to
            another log, or is served by this broker under another address.
        """
        self.close()
        self._connection = connection = self._engine.connect()
        tables = connection.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()"
            f" AND table_name IN ('{OUTBOX}', '{REFUSED}', '{IDENTITY}')"
        ).rows[0][0]
        if tables < 3:
            raise StorageUnavailable(_INCOMPLETE.format(self.location))
        try:
            self._statements = checked(connection, self._mapping)
        except InvalidRequest as error:
            raise StorageUnavailable(f"{self.location}: {error}") from None
        self._identity = identity = self._claimed().identity
        if (other := self._served.setdefault(identity, self)) is not self:
            raise StorageUnavailable(
                f"{self.location}: this broker serves the outbox already, at {other.location}"
            )
        # Take over before any statement that waits for the locks of an earlier relay. Its locks on
        # rows would make this relay move later rows of a key before them.
        take_over(self._engine, connection, f"outbox.{identity.hex()}")
        connection.execute(
            f"UPDATE {IDENTITY} SET log = ? WHERE outbox = ? AND log IS NULL",
            (self._log, self._mapping.table),
        )
        found = self._claimed()
        if found.identity != identity:
            raise StorageUnavailable(f"{self.location}: the outbox was reset")
        return found

    def _claimed(self) -> Outbox:
        """Return the outbox. Raise ``StorageUnavailable`` if another log has claimed it."""
        sql = f"SELECT identity, log, batch, mapping FROM {IDENTITY} WHERE outbox = ?"
        found = self._open.execute(sql, (self._mapping.table,)).rows
        if not found:
            raise StorageUnavailable(_INCOMPLETE.format(self.location))
        identity, log, batch, mapping = found[0]
        if log is not None and bytes(log) != self._log:
            raise StorageUnavailable(
                f"the outbox of {self.location} belongs to the log {bytes(log).hex()}, and this "
                f"broker has the log {self._log.hex()}; if it shall move to this log, stop the "
                "other broker and use `escapement sql reset`"
            )
        return Outbox(bytes(identity), int(batch), mapping)

    def settle(self, outbox: Outbox, record: Record) -> list[RowId]:
        """Make the rows of the last batch done, if that has not happened yet.

        Waits for rows that other sessions have locked. The last batch may have been moved by an
        earlier mapping of the table. Then its rows are recognised and made done by that mapping.

        Returns:
          The ids of rows that wait and have another content than the moved rows of these ids.
          They are left, because they are new rows: the database was restored, and uses the ids
          again.

        Raises:
          StorageUnavailable: if the database or the log was restored to an earlier time.
          TransactionAborted: if another session holds a row for too long.
        """
        new_ids: list[RowId] = []
        if outbox.batch != record.batch:
            new_ids = self._settle(outbox, record)
        if outbox.mapping != (mapping := self._mapping.to_json()):
            self._open.execute(
                f"UPDATE {IDENTITY} SET mapping = ? WHERE outbox = ?",
                (mapping, self._mapping.table),
            )
        return new_ids

    def _settle(self, outbox: Outbox, record: Record) -> list[RowId]:
        if outbox.batch != record.batch - 1:
            raise StorageUnavailable(
                f"the outbox of {self.location} ends with batch {outbox.batch}, and the log with "
                f"batch {record.batch}: one of them was restored to an earlier time, or replaced. "
                "Decide whether rows that are in the outbox again shall be sent again, delete the "
                "others, and use `escapement sql reset`"
            )
        sql = self._statements_of_last_batch(outbox.mapping)
        self._begin()
        wanted = dict(record.rows)
        rows = [row.moved() for row in self._read(sql, list(wanted), wait=True)]
        self._finish(sql, [row.id for row in rows if wanted[row.id] == row.digest])
        self._end(record.batch)
        return [row.id for row in rows if wanted[row.id] != row.digest]

    def _statements_of_last_batch(self, mapping: str | None) -> Statements:
        if mapping is None or mapping == self._mapping.to_json():
            return self._sql
        try:
            return checked(self._open, OutboxMapping.from_json(self._mapping.table, mapping))
        except InvalidRequest as error:
            raise StorageUnavailable(
                f"{self.location}: rows of the last batch cannot be found by the mapping that they "
                f"were moved by: {error}"
            ) from None

    # -- batches -------------------------------------------------------------------

    def take(self) -> tuple[list[OutboxRow], bool]:
        """Open a transaction, and lock and return the next rows in the order of their ids.

        If there are none, no transaction is open.

        Returns:
          The rows, and whether further rows probably follow.
        """
        for most in (self._sql.look_rows, FAR * self._sql.look_rows):
            seen = self._open.execute(self._sql.look, (most,)).rows
            if not seen:
                break
            rows, more = self._lock_first(seen)
            if rows:
                return rows, more or len(seen) == most
            if len(seen) < most:
                break
        return [], False

    def _lock_first(self, seen: Sequence[Row]) -> tuple[list[OutboxRow], bool]:
        """Open a transaction, and lock and return the rows of the first slice that has usable ones.

        If there are none, no transaction is open.

        Args:
          seen: the rows of a look.

        Returns:
          The rows, and whether some of the rows seen are left.
        """
        _check_ids(seen)
        sizes = np.array([_weight(size, key) for _, key, size, *_ in seen], np.int64)
        passed: set[_Mark] = set()
        self._begin()
        for low, high in islice(cuts(sizes, MAX_BYTES, MAX_ROWS), MAX_SLICES):
            some = seen[low:high]
            wanted = _in_order(some, {row[0]: row for row in some}, set(passed))
            locked = {row.id: row for row in self._read(self._sql, [row[0] for row in wanted])}
            found = _in_order(some, locked, passed)
            if rows := _of_few_topics(found):
                return rows, high < len(seen) or len(rows) < len(found)
        self._open.rollback()
        return [], False

    def finish(
        self, rows: Sequence[OutboxRow], refused: Sequence[tuple[RowId, str]], batch: int
    ) -> None:
        """Make the rows that ``take`` has returned done, and commit.

        Args:
          refused: ids of rows among them to be kept as refused, each with the reason.
          batch: the number of the last batch in the log.

        Raises:
          OutcomeUnknown: if the connection was lost during the commit.
        """
        for id, reason in refused:
            kept = self._open.execute(self._sql.refuse, (reason[:MAX_REASON_CHARS], id))
            if kept.affected != 1:
                raise StorageUnavailable(f"{self.location}: {REFUSED} does not take row {id!r}")
        self._finish(self._sql, [row.id for row in rows])
        self._end(batch)

    def _begin(self) -> None:
        """Open a transaction, and lock the identity of the outbox, so that no reset comes between.

        Raises:
          StorageUnavailable: if the outbox has another identity, because it was reset.
        """
        self._open.begin()
        sql = f"SELECT batch FROM {IDENTITY} WHERE outbox = ? AND identity = ? FOR UPDATE"
        if not self._open.execute(sql, (self._mapping.table, self._identity)).rows:
            raise StorageUnavailable(f"{self.location}: the outbox was reset")

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise StorageUnavailable(f"{self.location}: the connection is closed")
        return self._connection

    @property
    def _sql(self) -> Statements:
        assert self._statements is not None, "not attached"
        return self._statements

    def _read(self, of: Statements, ids: Sequence[RowId], wait: bool = False) -> list[OutboxRow]:
        """Lock the rows with these ids and return them, in the order of their ids.

        Args:
          wait: wait for rows that other sessions have locked, instead of skipping them.
        """
        sql = of.read if wait else f"{of.read} SKIP LOCKED"
        return [
            OutboxRow.of(row, of.due_unit, of.header_names)
            for some in padded(ids)
            for row in self._open.execute(sql.replace("{ids}", in_list(some)), some).rows
        ]

    def _finish(self, of: Statements, ids: Sequence[RowId]) -> None:
        """Make rows done that this transaction has locked."""
        if of.done_together is not None:
            done = self._open.execute(of.done_together, (json.dumps(list(ids)),)).affected
        else:
            done = self._open.execute_many(of.done, [(id,) for id in ids])
        if done != len(ids):
            raise StorageUnavailable(
                f"{self.location}: {len(ids) - done} rows that this transaction has locked are gone"
            )

    def _end(self, batch: int) -> None:
        """Note that no row of a batch waits, and commit."""
        noted = self._open.execute(
            f"UPDATE {IDENTITY} SET batch = ? WHERE outbox = ?", (batch, self._mapping.table)
        )
        if noted.affected != 1:
            raise StorageUnavailable(_INCOMPLETE.format(self.location))
        self._open.commit()


def _check_ids(seen: Sequence[Row]) -> None:
    """Raise ``StorageUnavailable`` if an id is too large to be a parameter of a statement."""
    for id, *_ in seen:
        if isinstance(id, int) and id > _MAX_ID:
            raise StorageUnavailable(f"row {id} has a larger id than {_MAX_ID}")


def _weight(size_bytes: int, key: str | None) -> int:
    """Return the bytes that a row takes in a batch. A row that is too large is not read."""
    return _ROW_BYTES + len(key or "") + (size_bytes if size_bytes <= MAX_MESSAGE_BYTES else 0)


def _in_order(seen: Sequence[Row], usable: Mapping[RowId, T], passed: set[_Mark]) -> list[T]:
    """Return the usable rows, but no row behind a related one that is not usable.

    Rows with the same key are related, and rows with the same dedup key. A request to cancel or
    reschedule is also related to all requests of its topic, because they may name the same message
    in other ways.

    Args:
      seen: id, key, size, dedup key of each row, and the topic if the row is a request; in order.
      usable: the rows that may be returned, by id.
      passed: the marks of rows before these that were not returned. Those of further rows are
        added.
    """
    rows: list[T] = []
    for id, key, _, dedup_key, topic in seen:
        row = usable.get(id)
        if row is not None and not passed:
            rows.append(row)
            continue
        named = zip(("key", "dedup key", "topic"), (key, dedup_key, topic), strict=True)
        marks = {(name, text(value)) for name, value in named if value}
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
