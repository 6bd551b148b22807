"""The lag of subscriptions by hour, stored for longer than the journal.

Owns the table ``lags``. A row covers the journal entries from ``first_seq`` to ``last_seq`` of one
epoch, for one subscription and hour. In an epoch all entries of a subscription are in one lane,
so their numbers are ordered. Rows of one subscription and hour do not overlap. A checkpoint
writes rows first and trims the journal later, so an entry may be in both. A reader that sums up
both skips the entries that a row covers already (:func:`behind`).

The key is the id of the subscription's *origin*, which a seek does not change. Rows are deleted
after ``REMEMBERED_MS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from escapement.names import TopicName
from escapement.storage.catalog import catalog
from escapement.storage.encoding.lag import Lag, Tally, decode_tally, encode_tally
from escapement.storage.engine.base import Connection, Row
from escapement.storage.engine.paging import PAGE_ROWS, pages
from escapement.storage.journal import journal
from escapement.storage.journal.journal import JournalRow
from escapement.storage.schema import require

# Retention of the lag of an hour: 90 days, which is about a quarter.
REMEMBERED_MS: Final = 90 * 86_400_000
# Rows deleted in one step. Each has some hundred bytes.
_STEP_ROWS: Final = 512

SET_ROW: Final = (
    "REPLACE INTO lags (hour_ms, origin_id, epoch, first_seq, last_seq, data)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
# The last journal entry that a row covers, by hour, origin and epoch.
Ends = Mapping[tuple[int, int, int], int]


class LagRow(NamedTuple):
    """A row to be written, with counts by cell of a tally."""

    hour_ms: int
    origin_id: int
    epoch: int
    first_seq: int
    last_seq: int
    counts: Mapping[int, int]

    def params(self) -> tuple[object, ...]:
        """Return the parameters for ``SET_ROW``."""
        return (*self[:5], encode_tally(Tally.of(self.counts)))


class HourOfLag(NamedTuple):
    """The counts of a subscription in an hour."""

    topic: TopicName
    subscription: str
    hour_ms: int  # begin of the hour
    tally: Tally


def read_ends(
    connection: Connection, rows: Sequence[JournalRow]
) -> dict[tuple[int, int, int], int]:
    """Return the last entry covered by the table, for the hours in these rows. One query."""
    hours = {lag.hour_ms for row in rows for lag in row.entry.lags}
    if not hours:
        return {}
    found = connection.execute(
        "SELECT hour_ms, origin_id, epoch, MAX(last_seq) FROM lags"
        " WHERE hour_ms >= ? AND hour_ms <= ? AND epoch >= ? GROUP BY hour_ms, origin_id, epoch",
        (min(hours), max(hours), min(row.epoch for row in rows)),
    ).rows
    return {(hour_ms, origin_id, epoch): seq for hour_ms, origin_id, epoch, seq in found}


def behind(ends: Ends, rows: Sequence[JournalRow]) -> Iterator[tuple[JournalRow, Lag]]:
    """Yield the lags of journal entries that no row covers."""
    for row in rows:
        for lag in row.entry.lags:
            if row.position.seq > ends.get((lag.hour_ms, lag.origin_id, row.epoch), 0):
                yield row, lag


def read_lags(
    connection: Connection,
    from_ms: int,
    until_ms: int,
    topics: Sequence[TopicName] | None = None,
    bundle_id: int = 0,
) -> list[HourOfLag]:
    """Return the counts of the hours that began in ``[from_ms, until_ms)``, in order. Blocking.

    The result is that of one moment: it covers exactly the acknowledgements durable by then.

    Args:
      topics: the topics to read; None for all.

    Raises:
      NotFound: if a topic does not exist.
      SchemaError: if this program's broker did not write the database.
    """
    connection.snapshot()
    try:
        require(connection)
        names = _names(connection, topics, bundle_id)
        rows = list(journal.read(connection, bundle_id))
        ends: dict[tuple[int, int, int], int] = {}
        found: dict[tuple[int, int], list[Tally]] = {}
        for hour_ms, origin_id, epoch, _, last_seq, data in _rows(connection, from_ms, until_ms):
            if origin_id in names:
                ends[hour_ms, origin_id, epoch] = last_seq
                found.setdefault((origin_id, hour_ms), []).append(decode_tally(data))
    finally:
        connection.rollback()
    for _, lag in behind(ends, rows):
        if lag.origin_id in names and from_ms <= lag.hour_ms < until_ms:
            found.setdefault((lag.origin_id, lag.hour_ms), []).append(lag.tally)
    return sorted(
        (
            HourOfLag(*names[origin_id], hour_ms, Tally.sum(parts))
            for (origin_id, hour_ms), parts in found.items()
        ),
        key=lambda hour: hour[:3],
    )


def _names(
    connection: Connection, topics: Sequence[TopicName] | None, bundle_id: int
) -> dict[int, tuple[TopicName, str]]:
    """Return the topic and name of each subscription, by its origin."""
    if topics is None:
        by_id = {record.id: name for name, record in catalog.read_named(connection, bundle_id)}
        return {
            one.origin_id: (by_id[one.topic_id], one.name)
            for one in catalog.read_subscriptions(connection)
            if one.topic_id in by_id
        }
    return {
        one.origin_id: (name, one.name)
        for name in topics
        for one in catalog.subscriptions_of(connection, catalog.find_topic(connection, name).id)
    }


def _rows(connection: Connection, from_ms: int, until_ms: int) -> Iterator[Row]:
    """Yield the rows of some hours in the order of their key, reading a page at a time."""
    key = ["hour_ms", "origin_id", "epoch", "first_seq"]
    columns = "hour_ms, origin_id, epoch, first_seq, last_seq, data"
    after = (from_ms, 0, 0, 0)
    return pages(connection, "lags", key, columns, PAGE_ROWS, after, "hour_ms < ?", (until_ms,))


def forget_step(before_ms: int, connection: Connection) -> bool:
    """Delete some hours that began before ``before_ms``. Return whether there may be more."""
    rows = connection.execute(
        "SELECT hour_ms, origin_id, epoch, first_seq FROM lags WHERE hour_ms < ?"
        f" ORDER BY hour_ms LIMIT {_STEP_ROWS}",
        (before_ms,),
    ).rows
    connection.execute_many(
        "DELETE FROM lags WHERE hour_ms = ? AND origin_id = ? AND epoch = ? AND first_seq = ?",
        rows,
    )
    return len(rows) == _STEP_ROWS
