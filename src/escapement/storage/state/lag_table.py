"""The lag of subscriptions by hour, stored for longer than the journal.

The *lag* shows how late messages were delivered and acknowledged. It is counted in a *tally* for
each subscription and hour (storage/encoding/lag.py). The journal entry of a group commit has the
tallies of its acknowledgements. Checkpoints add them up and store the sums in the table ``lags``,
which this module owns. A row covers the journal entries from ``first_seq`` to ``last_seq`` of one
epoch, for one subscription and hour. In an epoch all entries of a subscription are in one lane, so
their numbers are ordered. Rows of one subscription and hour do not overlap. A checkpoint writes
rows first and trims the journal later, so an entry may be in both. A reader of both skips the
entries that a row covers already (:func:`behind`).

Each seek replaces a subscription by a new one. Its lag is stored under the id of the *origin*, the
first of these subscriptions. Rows are deleted after ``REMEMBERED_MS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from escapement.names import TopicName
from escapement.storage.bundles import bundle_count
from escapement.storage.catalog import catalog
from escapement.storage.encoding.lag import Lag, Tally, decode_tally, encode_tally
from escapement.storage.engine.base import Connection, Row
from escapement.storage.engine.paging import PAGE_ROWS, pages
from escapement.storage.journal import journal
from escapement.storage.journal.journal import JournalRow
from escapement.storage.schema import require

# How long the lag of an hour is kept: 90 days, about a quarter of a year.
REMEMBERED_MS: Final = 90 * 86_400_000
# Limit of rows that one call of :func:`forget_step` deletes. Each has some hundred bytes.
_STEP_ROWS: Final = 512

SET_ROW: Final = (
    "REPLACE INTO lags (hour_ms, origin_id, epoch, first_seq, last_seq, data)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
# By hour, origin and epoch, the number of the last journal entry that the table ``lags`` covers.
Ends = Mapping[tuple[int, int, int], int]


class LagRow(NamedTuple):
    """A row of the table ``lags`` to be written.

    ``counts`` maps each cell of the row's tally to its count (storage/encoding/lag.py).
    """

    hour_ms: int
    origin_id: int
    epoch: int
    first_seq: int
    last_seq: int
    counts: Mapping[int, int]

    def params(self) -> tuple[object, ...]:
        """Return the parameters of the SQL statement ``SET_ROW``."""
        return (*self[:5], encode_tally(Tally.of(self.counts)))


class HourOfLag(NamedTuple):
    """The lag of one subscription in one hour."""

    topic: TopicName
    subscription: str
    hour_ms: int  # when the hour begins
    tally: Tally


def read_ends(
    connection: Connection, rows: Sequence[JournalRow]
) -> dict[tuple[int, int, int], int]:
    """Return, by hour, origin and epoch, the last journal entry that the table ``lags`` covers.

    Makes one query.

    Args:
      rows: journal rows. The result covers all hours for which they have a lag.
    """
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
    """Yield each lag in the journal that the table ``lags`` does not cover, with its journal row.

    Args:
      ends: the last entries that the table covers.
      rows: journal rows.
    """
    for row in rows:
        for lag in row.entry.lags:
            if row.position.seq > ends.get((lag.hour_ms, lag.origin_id, row.epoch), 0):
                yield row, lag


def read_lags(
    connection: Connection,
    from_ms: int,
    until_ms: int,
    topics: Sequence[TopicName] | None = None,
) -> list[HourOfLag]:
    """Return the lag of subscriptions by hour, ordered by topic, subscription and hour. Blocking.

    The result covers exactly the acknowledgements that are durable when it is read.

    Args:
      from_ms: return hours that begin at this time or later.
      until_ms: return hours that begin before this time.
      topics: the topics to read; None for all.

    Raises:
      NotFound: if a topic does not exist.
      SchemaError: if the database has no log, or its schema is not that of this program.
    """
    connection.snapshot()
    try:
        require(connection)
        names = _names(connection, topics)
        rows = [
            row
            for bundle_id in range(bundle_count(connection))
            for row in journal.read(connection, bundle_id)
        ]
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
    connection: Connection, topics: Sequence[TopicName] | None
) -> dict[int, tuple[TopicName, str]]:
    """Return the topic and the name of each subscription of ``topics``, by its origin."""
    if topics is None:
        by_id = {record.id: name for name, record in catalog.read_named(connection)}
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
    """Yield the rows of the hours that begin in ``[from_ms, until_ms)``, in the order of hours."""
    key = ["hour_ms", "origin_id", "epoch", "first_seq"]
    columns = "hour_ms, origin_id, epoch, first_seq, last_seq, data"
    after = (from_ms - 1,)
    return pages(connection, "lags", key, columns, PAGE_ROWS, after, "hour_ms < ?", (until_ms,))


def forget_step(before_ms: int, connection: Connection) -> bool:
    """Delete some rows of hours that began before ``before_ms``. Return whether more may exist."""
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
