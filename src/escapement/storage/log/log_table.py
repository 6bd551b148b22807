"""SQL statements for the rows of the log: how to insert, find and fetch them.

The rows are in the tables of a *generation* (storage/log/generation.py). A row has the messages
that one group commit wrote to one topic. Its key is ``(topic_id, base_offset)``. The *base offset*
of a row that states messages for the first time is the offset of its first message. The others
follow without gaps. A row with a negative base offset is a *restatement*: it states earlier
messages again, with new or with the same due times. The restatements of a topic have the base
offsets -1, -2, and so on, so the lowest one is the newest.

The *head* of a row is everything but its messages: its key, its size, its lowest and highest due
time, and when it was accepted. storage/log/log.py combines the generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s
from escapement.storage.engine.base import Connection, Row, Step
from escapement.storage.engine.paging import pages
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.log.generation import Generation
from escapement.storage.log.log_row import RowContent, decode_row

# Number of keys or heads that one query reads.
KEYS_AT_ONCE: Final = 256
# An end of a range of offsets that is higher than every offset.
NO_END: Final = (1 << 63) - 1
# Limit of key ranges in one SELECT, so that the statement is short and the server's optimizer
# estimates it exactly.
_RANGES_AT_ONCE: Final = 32
# Value of the column ``kind``: the row states messages for the first time.
CONTIGUOUS: Final = 0
# Value of the column ``kind``: the row is a restatement.
RESTATED: Final = 1
# The columns from which a :class:`RowKey` is made.
_KEY: Final = "topic_id, base_offset, message_count, size_bytes"
# The columns from which a :class:`RowHead` is made, for a topic that is known.
_HEAD: Final = "base_offset, message_count, size_bytes, min_due_ms, max_due_ms, accepted_at_ms"

MinMax = Literal["MIN", "MAX"]


class NewRow(NamedTuple):
    """A log row to be inserted. ``data`` comes from ``encode_row`` (storage/log/log_row.py)."""

    generation: Generation
    topic_id: int
    base_offset: int
    message_count: int
    min_due_ms: int
    max_due_ms: int
    accepted_at_ms: int
    data: bytes


class RowKey(NamedTuple):
    """The generation, the key and the size of a log row. The journal stores this too."""

    generation: int
    topic_id: int
    base_offset: int
    message_count: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        """The offset after the row's last message. It has no meaning for a restatement."""
        return self.base_offset + self.message_count


class RowHead(NamedTuple):
    """The head of a log row: its key and size, its lowest and highest due time, its acceptance."""

    key: RowKey
    min_due_ms: int
    max_due_ms: int
    accepted_at_ms: int


class LogRow(NamedTuple):
    """A log row that was read from the database, decoded."""

    key: RowKey
    content: RowContent

    @property
    def offsets(self) -> Int64s:
        """The offsets of the row's messages, ascending."""
        named = self.content.offsets
        return np.arange(self.key.base_offset, self.key.end_offset) if named is None else named


def insertion(rows: Sequence[NewRow], epoch: int) -> list[Step]:
    """Return the SQL statements that insert log rows, one for each table.

    Args:
      epoch: the epoch of the lease, which is stored in each row.
    """
    by_table: dict[str, list[tuple[object, ...]]] = {}
    for row in rows:
        by_table.setdefault(row.generation.table(row.topic_id), []).append(
            (
                row.topic_id,
                row.base_offset,
                row.message_count,
                row.min_due_ms,
                row.max_due_ms,
                epoch,
                row.accepted_at_ms,
                CONTIGUOUS if row.base_offset >= 0 else RESTATED,
                len(row.data),
                row.data,
            )
        )
    return [
        Step(
            f"INSERT INTO {table} (topic_id, base_offset, message_count, min_due_ms,"
            " max_due_ms, owner_epoch, accepted_at_ms, kind, size_bytes, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params,
        )
        for table, params in by_table.items()
    ]


def heads(
    connection: Connection, generation: Generation, topic_id: int, low: int, until: int
) -> Iterator[RowHead]:
    """Yield the heads of a topic's rows in one generation, ascending by base offset.

    These are the rows with base offsets in ``[low, until)``.
    """
    which = (f"topic_id = ? AND base_offset < ?{generation.guard}", (topic_id, until))
    table = generation.table(topic_id)
    for row in pages(connection, table, ["base_offset"], _HEAD, KEYS_AT_ONCE, (low - 1,), *which):
        yield _head(generation, topic_id, row)


def _head(generation: Generation, topic_id: int, row: Row) -> RowHead:
    base_offset, message_count, size_bytes, *times = row
    key = RowKey(generation.id, topic_id, base_offset, message_count, size_bytes)
    return RowHead(key, *times)


def keys_at(
    connection: Connection, generation: Generation, topic_id: int, bases: Sequence[int]
) -> Iterator[RowKey]:
    """Yield the keys of a topic's rows in one generation that have the base offsets ``bases``."""
    for some in padded(bases):
        rows = connection.execute(
            f"SELECT {_KEY} FROM {generation.table(topic_id)}"
            f" WHERE topic_id = ? AND base_offset {in_list(some)}",
            (topic_id, *some),
        ).rows
        for row in rows:
            yield RowKey(generation.id, *row)


def heads_from_last_to(
    connection: Connection, generation: Generation, topic_id: int, offset: int, most: int
) -> list[RowHead]:
    """Return the heads of up to ``most`` rows of a topic in one generation, ascending.

    The first is the last row whose base offset is at most ``offset``. Without such a row, the
    result is empty. Restatements are left out.
    """
    table = generation.table(topic_id)
    rows = connection.execute(
        f"SELECT {_HEAD} FROM {table}"
        f" WHERE topic_id = ? AND base_offset >= (SELECT MAX(base_offset) FROM {table}"
        f" WHERE topic_id = ? AND base_offset BETWEEN 0 AND ?){generation.guard}"
        f" ORDER BY base_offset LIMIT {most}",
        (topic_id, topic_id, offset),
    ).rows
    return [_head(generation, topic_id, row) for row in rows]


def last_row_to(
    connection: Connection, generation: Generation, topic_id: int, offset: int
) -> LogRow | None:
    """Return a topic's last row in one generation whose base offset is at most ``offset``.

    Restatements are left out.

    Raises:
      LogDamaged: if the row does not decode.
    """
    rows = connection.execute(
        f"SELECT {_KEY}, data FROM {generation.table(topic_id)}"
        f" WHERE topic_id = ? AND base_offset BETWEEN 0 AND ?{generation.guard}"
        " ORDER BY base_offset DESC LIMIT 1",
        (topic_id, offset),
    ).rows
    for *row, data in rows:
        key = RowKey(generation.id, *row)
        return LogRow(key, decoded(key, data))
    return None


def outermost_base(
    connection: Connection,
    generation: Generation,
    topic_id: int,
    which: MinMax,
    low: int,
    high: int,
) -> int | None:
    """Return the lowest or highest base offset of a topic's rows in one generation.

    Args:
      which: "MIN" for the lowest, "MAX" for the highest.
      low: leave out base offsets below this.
      high: leave out base offsets above this.
    """
    # With the guard, MIN or MAX would read all rows of the range.
    order = "ASC" if which == "MIN" else "DESC"
    rows = connection.execute(
        f"SELECT base_offset FROM {generation.table(topic_id)}"
        f" WHERE topic_id = ? AND base_offset BETWEEN ? AND ?{generation.guard}"
        f" ORDER BY base_offset {order} LIMIT 1",
        (topic_id, low, high),
    ).rows
    return int(rows[0][0]) if rows else None


def row_from(
    connection: Connection, generation: Generation, topic_id: int, low: int, until: int
) -> tuple[int, int, int] | None:
    """Return a topic's first row in one generation with a base offset in ``[low, until)``.

    Returns:
      The base offset, the offset after the last message, and the acceptance time of the row, or
      None if there is no such row.
    """
    rows = connection.execute(
        "SELECT base_offset, base_offset + message_count, accepted_at_ms"
        f" FROM {generation.table(topic_id)}"
        f" WHERE topic_id = ? AND base_offset >= ? AND base_offset < ?{generation.guard}"
        " ORDER BY base_offset LIMIT 1",
        (topic_id, low, until),
    ).rows
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def keys_of_table(connection: Connection, generation: Generation, table: str) -> Iterator[RowKey]:
    """Yield the keys of all rows in one table of a generation, ascending."""
    topic_id = -1
    while True:
        rows = connection.execute(
            f"SELECT {_KEY} FROM {table}"
            f" WHERE topic_id > ?{generation.guard}"
            f" ORDER BY topic_id, base_offset LIMIT {KEYS_AT_ONCE}",
            (topic_id,),
        ).rows
        for row in rows:
            yield RowKey(generation.id, *row)
        if len(rows) < KEYS_AT_ONCE:
            return
        # The page may have ended inside a topic. Read the rest of this topic, then go on with the
        # topics after it.
        topic_id, base_offset = rows[-1][:2]
        for head in heads(connection, generation, topic_id, base_offset + 1, NO_END):
            yield head.key


def first_accepted(
    connection: Connection, generation: Generation, topic_id: int, at_ms: int, low: int, high: int
) -> int | None:
    """Find a topic's first row in one generation that was accepted at ``at_ms`` or later.

    This is a binary search among the rows with base offsets in ``[low, high)``.

    Returns:
      The base offset of the row, or None if there is no such row.
    """
    found = None
    while low < high:
        middle = (low + high) // 2
        row = row_from(connection, generation, topic_id, middle, high)
        if row is not None and row[2] < at_ms:
            low = row[1]
        else:
            found = found if row is None else row[0]
            high = middle
    return found


def _ranges(keys: Sequence[RowKey]) -> list[tuple[int, int, int]]:
    """Return keys as ranges (topic id, first base offset, last base offset).

    Keys of rows that follow each other without a gap share a range.
    """
    ranges: list[tuple[int, int, int]] = []
    end = -1
    for key in keys:
        if ranges and ranges[-1][0] == key.topic_id and end == key.base_offset:
            ranges[-1] = (key.topic_id, ranges[-1][1], key.base_offset)
        else:
            ranges.append((key.topic_id, key.base_offset, key.base_offset))
        end = key.end_offset if key.base_offset >= 0 else -1
    return ranges


def fetch(
    connection: Connection, table: str, keys: Sequence[RowKey], into: Landing | None = None
) -> Iterator[tuple[tuple[int, int], Buffer]]:
    """Yield the key (topic id, base offset) and the data of the rows that exist in a table.

    Args:
      keys: the rows to fetch, all of which belong into this table.
      into: memory for the data; None for new memory. Clearing it makes the data invalid.
    """
    for some in padded(_ranges(keys), _RANGES_AT_ONCE):
        where = " OR ".join(["(topic_id = ? AND base_offset BETWEEN ? AND ?)"] * len(some))
        rows = connection.execute(
            f"SELECT topic_id, base_offset, data FROM {table} WHERE {where}",
            [value for each in some for value in each],
            into,
        ).rows
        for topic_id, base_offset, data in rows:
            yield (topic_id, base_offset), data


def decoded(key: RowKey, data: Buffer) -> RowContent:
    """Decode the data of a log row.

    Raises:
      LogDamaged: if the data is damaged, or its number of messages differs from that of the key.
    """
    try:
        content = decode_row(data)
    except LogDamaged as error:
        raise LogDamaged(f"{row_description(key)}: {error}") from error
    if len(content.due_ms) != key.message_count:
        count = len(content.due_ms)
        raise LogDamaged(f"{row_description(key)}: has {count} messages, not {key.message_count}")
    return content


def row_description(key: RowKey) -> str:
    """Return text for an error message: topic, base offset and generation of a row."""
    return f"topic {key.topic_id}, offset {key.base_offset}, generation {key.generation}"


def bounded(keys: Iterable[RowKey], max_bytes: int) -> Iterator[list[RowKey]]:
    """Divide row keys into lists whose rows have at most ``max_bytes`` together.

    A list has at least one key, even if that row is larger.
    """
    step: list[RowKey] = []
    budget = max_bytes
    for key in keys:
        if step and key.size_bytes > budget:
            yield step
            step, budget = [], max_bytes
        step.append(key)
        budget -= key.size_bytes
    if step:
        yield step
