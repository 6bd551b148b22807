"""The log: every batch of every topic, in arrival order, in the database.

Owns the tables ``generations`` and ``log_<generation>_<shard>``. One row is what one
group commit wrote of one topic, key ``(topic_id, base_offset)``. A row with a negative
base offset *restates* earlier messages, with other times: -1, -2, ..., the more negative
the newer. A generation is a
set of ``parallelism`` tables, a topic's rows in it are in the table ``topic_id %
parallelism``; forgetting old messages is dropping tables, oldest first
(storage/forgetting.py), and a change of parallelism takes effect with the next generation.
A topic's offsets never decrease from one generation to the next, so reading walks them in
order of their numbers.

Every read is bounded in bytes and gives whole rows. Reads do not lock; they are asked
only for what is known to be committed. A deleted topic's rows may vanish under a read or
a scan, and are then left out; whoever names rows leaves deleted topics out himself.

Does not know who calls it: the pipeline inserts, recovery and readers read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Lease, check
from escapement.storage.logrow import RowContent, decode_row

# A generation ends at this size: large enough that few are walked, small enough that
# dropping one frees room in reasonable steps.
GENERATION_SIZE_BYTES: Final = 8 << 30
DAY_MS: Final = 86_400_000
# Rows whose keys and sizes are asked for at once, before their data.
_KEYS_AT_ONCE: Final = 256
# Rows looked at by one read, wanted or not.
_KEYS_AT_MOST: Final = 4096
# The same, where nothing but when they were accepted is asked for.
_HEADS_AT_ONCE: Final = 64
# Offsets are below this.
_NO_END: Final = (1 << 63) - 1
# Ranges of one SELECT: the statement's text stays short, the server's optimizer exact.
_RANGES_AT_ONCE: Final = 32

_CREATE: Final = """
    CREATE TABLE IF NOT EXISTS {table} (
        topic_id BIGINT NOT NULL,
        base_offset BIGINT NOT NULL,
        message_count BIGINT NOT NULL,
        min_due_ms BIGINT NOT NULL,
        max_due_ms BIGINT NOT NULL,
        owner_epoch BIGINT NOT NULL,
        accepted_at_ms BIGINT NOT NULL,
        kind SMALLINT NOT NULL,
        size_bytes BIGINT NOT NULL,
        data {blob} NOT NULL,
        PRIMARY KEY (topic_id, base_offset)
    ){table_end}
"""
# The row states messages base_offset, base_offset + 1, ... for the first time.
CONTIGUOUS: Final = 0
# The row states earlier messages again, whose offsets it names; its base offset is negative.
RESTATED: Final = 1


@dataclass(frozen=True, slots=True)
class Generation:
    """One set of tables; ``size_bytes`` is as of the last checkpoint."""

    id: int
    parallelism: int
    created_at_ms: int
    size_bytes: int

    def table(self, topic_id: int) -> str:
        return f"log_{self.id}_{topic_id % self.parallelism}"


class NewRow(NamedTuple):
    """A row to be inserted; ``data`` is :func:`encode_row`'s."""

    generation: Generation
    topic_id: int
    base_offset: int
    message_count: int
    min_due_ms: int
    max_due_ms: int
    accepted_at_ms: int
    data: Buffer


class RowKey(NamedTuple):
    """Where a row is, and how large; what the journal says of it."""

    generation: int
    topic_id: int
    base_offset: int
    message_count: int
    size_bytes: int


class LogRow(NamedTuple):
    """A row read back; of a restatement, ``end_offset`` means nothing."""

    key: RowKey
    content: RowContent

    @property
    def end_offset(self) -> int:
        return self.key.base_offset + self.key.message_count


def should_roll(current: Generation, now_ms: int) -> bool:
    """Whether the next group belongs into a new generation: by size, or by (UTC) day."""
    if current.size_bytes >= GENERATION_SIZE_BYTES:
        return True
    return current.size_bytes > 0 and now_ms // DAY_MS > current.created_at_ms // DAY_MS


class Log:
    """The generations, and how to read and write them through a connection."""

    def __init__(self, generations: Sequence[Generation], going: Sequence[Generation] = ()) -> None:
        assert generations, "a log has a generation from its first opening on"
        self._generations = tuple(generations)
        self._going = tuple(going)

    @classmethod
    def open(
        cls, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> Log:
        """The log as the database has it; the first owner makes the first generation."""
        rows = connection.execute(
            "SELECT id, parallelism, created_at_ms, size_bytes FROM generations ORDER BY id"
        ).rows
        if rows:
            found = [Generation(*row) for row in rows]
            marked = {
                id
                for (id,) in connection.execute(
                    "SELECT id FROM removals WHERE kind = 'generation'"
                ).rows
            }
            return cls(
                [generation for generation in found if generation.id not in marked],
                [generation for generation in found if generation.id in marked],
            )
        first = Generation(1, parallelism, now_ms, 0)
        _create(engine, connection, lease, first)
        return cls([first])

    @property
    def generations(self) -> tuple[Generation, ...]:
        return self._generations

    @property
    def current(self) -> Generation:
        """The one that new rows go into."""
        return self._generations[-1]

    @property
    def going(self) -> tuple[Generation, ...]:
        """Those that nobody reads any more, and whose tables are to be dropped."""
        return self._going

    def retire(self, generation: Generation) -> None:
        """Nobody reads the oldest generation from now on; reads under way still may."""
        assert generation.id == self._generations[0].id != self.current.id
        self._going = (*self._going, generation)
        self._generations = self._generations[1:]

    def forget(self, generation: Generation) -> None:
        """A generation that was going is gone."""
        self._going = tuple(one for one in self._going if one.id != generation.id)

    def prepare(
        self, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> Generation:
        """Make the tables of the next generation; blocking, outside of a transaction.

        Safe to repeat after a crash. :meth:`begin` follows, in the event loop's thread.
        """
        generation = Generation(self.current.id + 1, parallelism, now_ms, 0)
        _create(engine, connection, lease, generation)
        return generation

    def begin(self, generation: Generation) -> None:
        """From the next group on rows go there; a group under way ends in the old one."""
        assert generation.id == self.current.id + 1
        self._generations = (*self._generations, generation)

    def wrote(self, size_bytes: int) -> None:
        """Count what a group added to the current generation; a checkpoint keeps the sum."""
        current = self.current
        grown = replace(current, size_bytes=current.size_bytes + size_bytes)
        self._generations = (*self._generations[:-1], grown)

    def insert(self, connection: Connection, rows: Sequence[NewRow], epoch: int) -> None:
        """Write rows inside the open transaction, in one burst for each table."""
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
        for table, params in by_table.items():
            connection.execute_many(
                f"INSERT INTO {table} (topic_id, base_offset, message_count, min_due_ms,"
                " max_due_ms, owner_epoch, accepted_at_ms, kind, size_bytes, data)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                params,
            )

    def read(
        self,
        connection: Connection,
        topic_id: int,
        from_offset: int,
        until_offset: int,
        max_bytes: int,
    ) -> list[LogRow]:
        """One topic's rows in order, beginning with the one that holds ``from_offset``.

        Rows that begin at or past ``until_offset`` are left out: it must not lie past
        what is known to be committed. At least one row is given, if there is one, and
        no more than ``max_bytes`` beyond it.
        """
        return self.read_due(connection, topic_id, from_offset, until_offset, 0, max_bytes)[0]

    def read_due(
        self,
        connection: Connection,
        topic_id: int,
        from_offset: int,
        until_offset: int,
        min_due_ms: int,
        max_bytes: int,
    ) -> tuple[list[LogRow], int]:
        """As ``read``, without rows of which all messages are due before ``min_due_ms``.

        Returns the rows, of which there may be none, and the offset to go on from.
        """
        budget, looked = max_bytes, 0
        keys: list[RowKey] = []
        reached = from_offset
        for generation, low in self._start(connection, topic_id, from_offset):
            for key, max_due_ms in _dated_keys(connection, generation, topic_id, low, until_offset):
                end = key.base_offset + key.message_count
                if end <= from_offset:
                    continue
                wanted = max_due_ms >= min_due_ms
                if looked == _KEYS_AT_MOST or (wanted and keys and key.size_bytes > budget):
                    return self._fetch_found(connection, keys), reached
                if wanted:
                    keys.append(key)
                    budget -= key.size_bytes
                reached = end
                looked += 1
        return self._fetch_found(connection, keys), max(reached, until_offset)

    def first_accepted(
        self, connection: Connection, topic_id: int, at_ms: int, until_offset: int
    ) -> int:
        """The first offset of a row accepted at ``at_ms`` or later, else ``until_offset``.

        Found by halving: where the wall clock was set back, of the places between an earlier
        and a later row one is found, not necessarily the first.
        """
        found = until_offset
        for generation in reversed(self._generations):
            row = _row_from(connection, generation, topic_id, 0, until_offset)
            if row is None:
                continue
            base_offset, end_offset, accepted_at_ms = row
            if accepted_at_ms < at_ms:
                later = _first_accepted(connection, generation, topic_id, at_ms, end_offset, found)
                return found if later is None else later
            found = base_offset
        return found

    def read_rows(
        self, connection: Connection, keys: Iterable[RowKey], max_bytes: int
    ) -> Iterator[list[LogRow]]:
        """The rows named, in the order named, in steps of about ``max_bytes``.

        Raises:
          LogDamaged: if a row is not there or not as it was written.
        """
        for step in _bounded(keys, max_bytes):
            rows = self._fetch_found(connection, step)
            if len(rows) < len(step):
                there = {row.key for row in rows}
                missing = next(key for key in step if key not in there)
                raise LogDamaged(f"the log lacks a row that was committed: {_place(missing)}")
            yield rows

    def page(
        self,
        connection: Connection,
        generation: Generation,
        topic_id: int,
        low: int,
        until: int,
    ) -> list[tuple[RowKey, int]]:
        """Keys of a topic's rows in one generation, from base offset ``low`` on, in order.

        Each with when the last of its messages is due; no more than one query gives.
        """
        dated = _dated_keys(connection, generation, topic_id, low, until)
        return list(islice(dated, _KEYS_AT_ONCE))

    def fetch(
        self, connection: Connection, keys: Sequence[RowKey], max_bytes: int
    ) -> Iterator[list[LogRow]]:
        """The rows named that are there, in the order named, in steps of about ``max_bytes``."""
        for step in _bounded(keys, max_bytes):
            yield self._fetch_found(connection, step)

    def scan(self, connection: Connection, max_bytes: int) -> Iterator[list[LogRow]]:
        """Every row of every topic, each topic's in order, in steps of about ``max_bytes``."""
        for generation in self._generations:
            for shard in range(generation.parallelism):
                keys = _keys_of_shard(connection, generation, shard)
                for step in _bounded(keys, max_bytes):
                    yield self._fetch_found(connection, step)

    def end_offset(self, connection: Connection, topic_id: int) -> int:
        """The offset after the last one stored; 0 for a topic without rows."""
        for generation in reversed(self._generations):
            rows = connection.execute(
                f"SELECT base_offset + message_count FROM {generation.table(topic_id)}"
                " WHERE topic_id = ? AND base_offset >= 0 ORDER BY base_offset DESC LIMIT 1",
                (topic_id,),
            ).rows
            if rows:
                return int(rows[0][0])
        return 0

    def accepted_ms(self, connection: Connection, topic_id: int, offsets: Int64s) -> Int64s:
        """When each of these messages was accepted; 0 for those that are not here.

        Reads no payloads. Offsets that lie close together share a query.

        Args:
          offsets: ascending; int64[n].
        """
        found = np.zeros(len(offsets), np.int64)
        at = 0
        while at < len(offsets):
            begun = at
            for generation, low in self._start(connection, topic_id, int(offsets[at])):
                rows = connection.execute(
                    "SELECT base_offset, message_count, accepted_at_ms"
                    f" FROM {generation.table(topic_id)} WHERE topic_id = ? AND base_offset >= ?"
                    f" ORDER BY base_offset LIMIT {_HEADS_AT_ONCE}",
                    (topic_id, low),
                ).rows
                for base, count, accepted_ms in rows:
                    first, last = np.searchsorted(offsets, [base, base + count])
                    found[first:last] = accepted_ms
                    at = max(at, int(last))
                if at > begun:
                    break
            at = max(at, begun + 1)
        return found

    def holding(
        self, connection: Connection, topic_id: int, offsets: Int64s, max_bytes: int
    ) -> tuple[list[LogRow], int]:
        """The rows that state the first of these messages for the first time.

        Offsets that lie close together share a query.

        Args:
          offsets: ascending; int64[n].
          max_bytes: how much to read beyond the first row.

        Returns:
          The rows, in order, and how many of the offsets have been looked for.
        """
        keys: list[RowKey] = []
        budget, at = max_bytes, 0
        while at < len(offsets):
            begun = at
            for generation, low in self._start(connection, topic_id, int(offsets[at])):
                rows = connection.execute(
                    "SELECT topic_id, base_offset, message_count, size_bytes"
                    f" FROM {generation.table(topic_id)} WHERE topic_id = ? AND base_offset >= ?"
                    f" ORDER BY base_offset LIMIT {_HEADS_AT_ONCE}",
                    (topic_id, low),
                ).rows
                for row in rows:
                    key = RowKey(generation.id, *row)
                    end = key.base_offset + key.message_count
                    first, last = np.searchsorted(offsets, [key.base_offset, end]).tolist()
                    if last > max(first, at):
                        if keys and key.size_bytes > budget:
                            return self._fetch_found(connection, keys), at
                        keys.append(key)
                        budget -= key.size_bytes
                    at = max(at, last)
                if at > begun:
                    break
            at = max(at, begun + 1)
        return self._fetch_found(connection, keys), at

    def lowest_base(self, connection: Connection, topic_id: int) -> int:
        """The key of the topic's newest restatement; 0 if it has none."""
        found = [
            connection.execute(
                f"SELECT MIN(base_offset) FROM {generation.table(topic_id)} WHERE topic_id = ?",
                (topic_id,),
            ).rows[0][0]
            for generation in self._generations
        ]
        return min((int(base) for base in found if base is not None and base < 0), default=0)

    def _start(
        self, connection: Connection, topic_id: int, from_offset: int
    ) -> Iterator[tuple[Generation, int]]:
        """The generations from the one that holds ``from_offset`` on, with where to begin.

        From the first there is, where the log begins later.
        """
        generations = self._generations
        for at in reversed(range(len(generations))):
            generation = generations[at]
            low = connection.execute(
                f"SELECT MAX(base_offset) FROM {generation.table(topic_id)}"
                " WHERE topic_id = ? AND base_offset BETWEEN 0 AND ?",
                (topic_id, from_offset),
            ).rows[0][0]
            if low is not None:
                yield generation, int(low)
                break
        else:
            at = -1
        for later in generations[at + 1 :]:
            yield later, 0

    def _fetch_found(self, connection: Connection, keys: Sequence[RowKey]) -> list[LogRow]:
        """The rows of ``keys``, in that order, without those that are not there."""
        # A read that began before a generation was retired goes on to its end.
        known = (*self._generations, *self._going)
        by_id = {generation.id: generation for generation in known}
        by_table: dict[str, list[RowKey]] = {}
        for key in keys:
            if key.generation not in by_id:
                raise LogDamaged(f"generation {key.generation} of the log is not there")
            by_table.setdefault(by_id[key.generation].table(key.topic_id), []).append(key)
        found: dict[tuple[int, int], Buffer] = {}
        for table, wanted in by_table.items():
            ranges = _ranges(wanted)
            for low in range(0, len(ranges), _RANGES_AT_ONCE):
                found.update(_fetch(connection, table, ranges[low : low + _RANGES_AT_ONCE]))
        return [
            LogRow(key, _decoded(key, found[key.topic_id, key.base_offset]))
            for key in keys
            if (key.topic_id, key.base_offset) in found
        ]


def _create(engine: Engine, connection: Connection, lease: Lease, new: Generation) -> None:
    words = engine.dialect
    for shard in range(new.parallelism):
        connection.execute(
            _CREATE.format(table=new.table(shard), blob=words.blob, table_end=words.table_end)
        )
    # Only when its tables are there, and only by the owner, does it count.
    connection.begin()
    try:
        check(engine, connection, lease)
        # A try whose COMMIT got no reply may have left it, of another number of tables even.
        connection.execute("DELETE FROM generations WHERE id = ?", (new.id,))
        connection.execute(
            "INSERT INTO generations (id, parallelism, created_at_ms, size_bytes)"
            " VALUES (?, ?, ?, 0)",
            (new.id, new.parallelism, new.created_at_ms),
        )
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _keys_of_topic(
    connection: Connection, generation: Generation, topic_id: int, low: int, until: int
) -> Iterator[RowKey]:
    """The keys of one topic in one generation, from base offset ``low`` on."""
    for key, _ in _dated_keys(connection, generation, topic_id, low, until):
        yield key


def _dated_keys(
    connection: Connection, generation: Generation, topic_id: int, low: int, until: int
) -> Iterator[tuple[RowKey, int]]:
    """The same, each with when the last of its messages is due."""
    while True:
        rows = connection.execute(
            "SELECT topic_id, base_offset, message_count, size_bytes, max_due_ms"
            f" FROM {generation.table(topic_id)}"
            " WHERE topic_id = ? AND base_offset >= ? AND base_offset < ?"
            f" ORDER BY base_offset LIMIT {_KEYS_AT_ONCE}",
            (topic_id, low, until),
        ).rows
        for *row, max_due_ms in rows:
            yield RowKey(generation.id, *row), max_due_ms
        if len(rows) < _KEYS_AT_ONCE:
            return
        low = rows[-1][1] + 1


def _row_from(
    connection: Connection, generation: Generation, topic_id: int, low: int, until: int
) -> tuple[int, int, int] | None:
    """A topic's first row that begins in ``[low, until)``: its ends, when it was accepted."""
    rows = connection.execute(
        "SELECT base_offset, base_offset + message_count, accepted_at_ms"
        f" FROM {generation.table(topic_id)}"
        " WHERE topic_id = ? AND base_offset >= ? AND base_offset < ?"
        " ORDER BY base_offset LIMIT 1",
        (topic_id, low, until),
    ).rows
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def _keys_of_shard(connection: Connection, generation: Generation, shard: int) -> Iterator[RowKey]:
    """The keys of all topics in one table, in their order."""
    table = generation.table(shard)
    topic_id = -1
    while True:
        rows = connection.execute(
            f"SELECT topic_id, base_offset, message_count, size_bytes FROM {table}"
            f" WHERE topic_id > ? ORDER BY topic_id, base_offset LIMIT {_KEYS_AT_ONCE}",
            (topic_id,),
        ).rows
        for row in rows:
            yield RowKey(generation.id, *row)
        if len(rows) < _KEYS_AT_ONCE:
            return
        # The page ended inside a topic: its rest, then the topics after it.
        topic_id, base_offset = rows[-1][:2]
        yield from _keys_of_topic(connection, generation, topic_id, base_offset + 1, _NO_END)


def _first_accepted(
    connection: Connection, generation: Generation, topic_id: int, at_ms: int, low: int, high: int
) -> int | None:
    """The first offset of a row in ``[low, high)`` accepted at ``at_ms`` or later."""
    found = None
    while low < high:
        middle = (low + high) // 2
        row = _row_from(connection, generation, topic_id, middle, high)
        if row is not None and row[2] < at_ms:
            low = row[1]
        else:
            found = found if row is None else row[0]
            high = middle
    return found


def _ranges(keys: Sequence[RowKey]) -> list[tuple[int, int, int]]:
    """The keys as (topic, first base, last base), neighbours in one range."""
    ranges: list[tuple[int, int, int]] = []
    end = -1
    for key in keys:
        if ranges and ranges[-1][0] == key.topic_id and end == key.base_offset:
            ranges[-1] = (key.topic_id, ranges[-1][1], key.base_offset)
        else:
            ranges.append((key.topic_id, key.base_offset, key.base_offset))
        end = key.base_offset + key.message_count if key.base_offset >= 0 else -1
    return ranges


def _fetch(
    connection: Connection, table: str, ranges: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[tuple[int, int], Buffer]]:
    # As many terms as the next power of two, so that few statements need preparing.
    terms = 1 << (len(ranges) - 1).bit_length()
    padded = [*ranges, *[ranges[-1]] * (terms - len(ranges))]
    where = " OR ".join(["(topic_id = ? AND base_offset BETWEEN ? AND ?)"] * terms)
    rows = connection.execute(
        f"SELECT topic_id, base_offset, data FROM {table} WHERE {where}",
        [value for each in padded for value in each],
    ).rows
    for topic_id, base_offset, data in rows:
        yield (topic_id, base_offset), data


def _decoded(key: RowKey, data: Buffer) -> RowContent:
    try:
        content = decode_row(data)
    except LogDamaged as error:
        raise LogDamaged(f"{_place(key)}: {error}") from error
    if len(content.due_ms) != key.message_count:
        count = len(content.due_ms)
        raise LogDamaged(f"{_place(key)}: {count} messages, not {key.message_count}")
    return content


def _place(key: RowKey) -> str:
    return f"topic {key.topic_id}, offset {key.base_offset}, generation {key.generation}"


def _bounded(keys: Iterable[RowKey], max_bytes: int) -> Iterator[list[RowKey]]:
    """The keys in runs whose rows are about ``max_bytes`` together, at least one each."""
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
