"""The lag of subscriptions by hour, kept past the journal.

Owns the table ``lags``. A row is what the entries of the journal from ``first_seq`` to
``last_seq`` of one epoch say of one subscription and hour; in an epoch all of a subscription's
entries are in one lane, so their numbers have an order. Rows of one subscription and hour do not
overlap. A checkpoint writes rows and trims the journal later; so an entry may be in both, and
whoever sums up leaves out of the journal what a row stands for already (:func:`behind`).

Rows are kept under the id of the subscription's *origin*, which a seek does not change. They
are forgotten after ``REMEMBERED_MS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from escapement.names import TopicName
from escapement.storage import catalog
from escapement.storage.engine.base import Connection, Row
from escapement.storage.journal import journal
from escapement.storage.journal.journal import JournalRow
from escapement.storage.lag import Lag, Tally, decode_tally, encode_tally
from escapement.storage.schema import require

# How long the lag of an hour is kept: 90 days, a quarter and a little.
REMEMBERED_MS: Final = 90 * 86_400_000
# Rows deleted in one step, and read at once; each has some hundred bytes.
_STEP_ROWS: Final = 512
_PAGE_ROWS: Final = 4096

SET_ROW: Final = (
    "REPLACE INTO lags (hour_ms, origin_id, epoch, first_seq, last_seq, data)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
# The last entry that a row stands for, by hour, origin and epoch.
Ends = Mapping[tuple[int, int, int], int]


class LagRow(NamedTuple):
    """One row to be written; ``counts`` by cell of a tally."""

    hour_ms: int
    origin_id: int
    epoch: int
    first_seq: int
    last_seq: int
    counts: Mapping[int, int]

    def params(self) -> tuple[object, ...]:
        """Of ``SET_ROW``."""
        return (*self[:5], encode_tally(Tally.of(self.counts)))


class HourOfLag(NamedTuple):
    """What was counted of a subscription in an hour."""

    topic: TopicName
    subscription: str
    hour_ms: int  # when it began
    tally: Tally


def read_ends(
    connection: Connection, rows: Sequence[JournalRow]
) -> dict[tuple[int, int, int], int]:
    """Up to where the hours that these entries name are in the table; one query."""
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
    """What entries of the journal say that is in no row."""
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
    """What was counted in the hours that began in ``[from_ms, until_ms)``, in order; blocking.

    It is true of one moment: all acknowledgements that were durable by then, and no others.

    Args:
      topics: of which; None: of all.

    Raises:
      NotFound: if there is no such topic.
      SchemaError: if the database was not written by this program's broker.
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
    """Topic and name of each subscription, by its origin."""
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
    """The rows of some hours in the order of their key, a page at a time."""
    key = (from_ms, 0, 0, 0)
    while True:
        hour_ms, origin_id, epoch, first_seq = key
        page = connection.execute(
            "SELECT hour_ms, origin_id, epoch, first_seq, last_seq, data FROM lags"
            " WHERE hour_ms >= ? AND hour_ms < ? AND NOT (hour_ms = ? AND (origin_id < ?"
            " OR (origin_id = ? AND (epoch < ? OR (epoch = ? AND first_seq <= ?)))))"
            f" ORDER BY hour_ms, origin_id, epoch, first_seq LIMIT {_PAGE_ROWS}",
            (hour_ms, until_ms, hour_ms, origin_id, origin_id, epoch, epoch, first_seq),
        ).rows
        yield from page
        if len(page) < _PAGE_ROWS:
            return
        key = page[-1][:4]


def forget_step(before_ms: int, connection: Connection) -> bool:
    """Forget some hours that began earlier; whether there may be more."""
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
