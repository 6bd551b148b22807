"""The rows of one generation's tables: their keys, and how to write, find and fetch them.

One row holds the messages that one group commit wrote to one topic; its key is ``(topic_id,
base_offset)``. A row with a negative base offset *restates* earlier messages with other due times.
Restatements have the keys -1, -2, ...; the lowest is the newest. This module has SQL statements
only; storage/log/generations.py keeps the set of generations.
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

# Row keys and sizes to query at once, before the rows' data.
KEYS_AT_ONCE: Final = 256
# Every offset is below this.
NO_END: Final = (1 << 63) - 1
# Ranges in one SELECT: few enough for a short statement and an exact server optimizer.
_RANGES_AT_ONCE: Final = 32
# The row states messages base_offset, base_offset + 1, ... for the first time.
CONTIGUOUS: Final = 0
# The row restates earlier messages and names their offsets; its base offset is negative.
RESTATED: Final = 1
# The columns of a :class:`RowKey`, without the generation.
_KEY: Final = "topic_id, base_offset, message_count, size_bytes"
# The columns of a topic's :class:`RowHead`.
_HEAD: Final = "base_offset, message_count, size_bytes, min_due_ms, max_due_ms, accepted_at_ms"

MinMax = Literal["MIN", "MAX"]


class NewRow(NamedTuple):
    """A row to be inserted; :func:`encode_row` makes its ``data``."""

    generation: Generation
    topic_id: int
    base_offset: int
    message_count: int
    min_due_ms: int
    max_due_ms: int
    accepted_at_ms: int
    data: bytes


class RowKey(NamedTuple):
    """The place and size of a row, as stored in the journal."""

    generation: int
    topic_id: int
    base_offset: int
    message_count: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        """The offset after its last message. Without meaning for a restatement."""
        return self.base_offset + self.message_count


class RowHead(NamedTuple):
    """The columns of a row beside its data."""

    key: RowKey
    min_due_ms: int
    max_due_ms: int
    accepted_at_ms: int


class LogRow(NamedTuple):
    """A row as read back."""

    key: RowKey
    content: RowContent

    @property
    def offsets(self) -> Int64s:
        """The offsets of its messages, ascending."""
        named = self.content.offsets
        return np.arange(self.key.base_offset, self.key.end_offset) if named is None else named


def insertion(rows: Sequence[NewRow], epoch: int) -> list[Step]:
    """Return the steps that insert these rows, one for each table."""
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
    """Yield the heads of one topic's rows in one generation, from base offset ``low`` on."""
    which = ("topic_id = ? AND base_offset < ?", (topic_id, until))
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
    """Yield the keys of a topic's rows in one generation that have these base offsets."""
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
    """Return up to ``most`` heads from the last row that begins at or before ``offset`` on."""
    table = generation.table(topic_id)
    rows = connection.execute(
        f"SELECT {_HEAD} FROM {table}"
        f" WHERE topic_id = ? AND base_offset >= (SELECT MAX(base_offset) FROM {table}"
        " WHERE topic_id = ? AND base_offset BETWEEN 0 AND ?)"
        f" ORDER BY base_offset LIMIT {most}",
        (topic_id, topic_id, offset),
    ).rows
    return [_head(generation, topic_id, row) for row in rows]


def last_row_to(
    connection: Connection, generation: Generation, topic_id: int, offset: int
) -> LogRow | None:
    """Return a topic's last row that begins at or before ``offset``. Raises ``LogDamaged``."""
    rows = connection.execute(
        f"SELECT {_KEY}, data FROM {generation.table(topic_id)}"
        " WHERE topic_id = ? AND base_offset BETWEEN 0 AND ? ORDER BY base_offset DESC LIMIT 1",
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
    """Return the lowest or the highest base offset in ``[low, high]`` that a topic's row has."""
    found = connection.execute(
        f"SELECT {which}(base_offset) FROM {generation.table(topic_id)}"
        " WHERE topic_id = ? AND base_offset BETWEEN ? AND ?",
        (topic_id, low, high),
    ).rows[0][0]
    return None if found is None else int(found)


def row_from(
    connection: Connection, generation: Generation, topic_id: int, low: int, until: int
) -> tuple[int, int, int] | None:
    """Return the bounds and acceptance time of a topic's first row that begins in the range.

    The range is ``[low, until)``.
    """
    rows = connection.execute(
        "SELECT base_offset, base_offset + message_count, accepted_at_ms"
        f" FROM {generation.table(topic_id)}"
        " WHERE topic_id = ? AND base_offset >= ? AND base_offset < ?"
        " ORDER BY base_offset LIMIT 1",
        (topic_id, low, until),
    ).rows
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def keys_of_table(connection: Connection, generation: Generation, table: str) -> Iterator[RowKey]:
    """Yield the keys of all topics in one table of a generation, in key order."""
    topic_id = -1
    while True:
        rows = connection.execute(
            f"SELECT {_KEY} FROM {table}"
            f" WHERE topic_id > ? ORDER BY topic_id, base_offset LIMIT {KEYS_AT_ONCE}",
            (topic_id,),
        ).rows
        for row in rows:
            yield RowKey(generation.id, *row)
        if len(rows) < KEYS_AT_ONCE:
            return
        # The page ended inside a topic: continue with its rest, then with the topics after it.
        topic_id, base_offset = rows[-1][:2]
        for head in heads(connection, generation, topic_id, base_offset + 1, NO_END):
            yield head.key


def first_accepted(
    connection: Connection, generation: Generation, topic_id: int, at_ms: int, low: int, high: int
) -> int | None:
    """Return the first offset of a row in ``[low, high)`` accepted at ``at_ms`` or later."""
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
    """Return the keys as (topic, first base, last base), neighbours in one range."""
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
    """Yield the data of those rows of a table that exist, by (topic, base offset)."""
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
    """Return the content of a row, checked against its key. Raises ``LogDamaged``."""
    try:
        content = decode_row(data)
    except LogDamaged as error:
        raise LogDamaged(f"{place(key)}: {error}") from error
    if len(content.due_ms) != key.message_count:
        count = len(content.due_ms)
        raise LogDamaged(f"{place(key)}: has {count} messages, not {key.message_count}")
    return content


def place(key: RowKey) -> str:
    """Describe the place of a row for an error message."""
    return f"topic {key.topic_id}, offset {key.base_offset}, generation {key.generation}"


def bounded(keys: Iterable[RowKey], max_bytes: int) -> Iterator[list[RowKey]]:
    """Yield the keys in runs whose rows have about ``max_bytes`` together, at least one each."""
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
