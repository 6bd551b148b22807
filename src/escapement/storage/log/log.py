"""The log: all published messages of all topics, in arrival order, in the database.

The log is a sequence of generations (storage/log/generations.py). Each is a set of tables, whose
rows storage/log/log_table.py reads. A *row* has the messages that one group commit wrote to one
topic. Its *base offset* is the offset of its first message. A row *states* its messages. A row with
a negative base offset is a *restatement*: it states earlier messages again, because they were
rescheduled or relocated. The *head* of a row is everything but its messages: key, size, due times
and acceptance time. A topic's offsets never decrease from one generation to the next, so a reader
goes through the generations in the order of their ids. Old messages are forgotten by dropping the
oldest generation (storage/cleanup/forgetting.py).

Every read is bounded in bytes and returns whole rows. Reads take no locks, so a caller must ask
only for offsets that are known to be committed. A deleted topic's rows may disappear during a read,
which then leaves them out. A caller that reads rows by their keys must itself leave out deleted
topics.

The commit pipeline inserts rows; recovery and readers read them. This module does not depend on
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s
from escapement.storage.engine.base import Connection
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.log.generation import Generation
from escapement.storage.log.generations import Generations
from escapement.storage.log.log_table import (
    KEYS_AT_ONCE,
    NO_END,
    LogRow,
    MinMax,
    RowHead,
    RowKey,
    bounded,
    decoded,
    fetch,
    first_accepted,
    heads,
    heads_from_last_to,
    keys_at,
    keys_of_table,
    last_row_to,
    outermost_base,
    row_description,
    row_from,
)

# Limit of the row heads that one call of :meth:`Log.read_due` examines.
_KEYS_AT_MOST: Final = 4096
# Number of heads or keys that one query reads while rows are searched by offset.
_HEADS_AT_ONCE: Final = 64


class Log(Generations):
    """The log: its generations, and methods to read their rows through a connection."""

    def read_due(
        self,
        connection: Connection,
        topic_id: int,
        from_offset: int,
        until_offset: int,
        min_due_ms: int,
        max_bytes: int,
    ) -> tuple[list[LogRow], int]:
        """Return a topic's rows in order, beginning with the one that states ``from_offset``.

        Restatements are left out.

        Args:
          until_offset: rows whose base offset is this or higher are left out. It must not lie past
            the committed end of the topic.
          min_due_ms: rows whose messages are all due before this time are left out.
          max_bytes: limit for the size of the rows together. The first row may exceed it.

        Returns:
          The rows, possibly none, and the offset from which to continue.
        """
        budget, reached = max_bytes, from_offset
        keys: list[RowKey] = []
        heads = self.heads(connection, topic_id, from_offset, until_offset)
        for looked, head in enumerate(heads):
            key, wanted = head.key, head.max_due_ms >= min_due_ms
            if looked == _KEYS_AT_MOST or (wanted and keys and key.size_bytes > budget):
                return self.fetch_found(connection, keys), reached
            if wanted:
                keys.append(key)
                budget -= key.size_bytes
            reached = key.end_offset
        return self.fetch_found(connection, keys), max(reached, until_offset)

    def heads(
        self, connection: Connection, topic_id: int, from_offset: int, until_offset: int
    ) -> Iterator[RowHead]:
        """Yield the heads of a topic's rows that have offsets in a range, in order.

        The range is ``[from_offset, until_offset)``. Restatements are left out.
        """
        for generation, low in self._start(connection, topic_id, from_offset):
            for head in heads(connection, generation, topic_id, low, until_offset):
                if head.key.end_offset > from_offset:
                    yield head

    def first_accepted(
        self, connection: Connection, topic_id: int, at_ms: int, until_offset: int
    ) -> int:
        """Return the base offset of a topic's first row that was accepted at ``at_ms`` or later.

        Returns ``until_offset`` if no row with a lower base offset was. This is a binary search,
        which expects acceptance times to ascend. If the wall clock was set back, it may return a
        later row than the first one.
        """
        found = until_offset
        for generation in reversed(self._generations):
            row = row_from(connection, generation, topic_id, 0, until_offset)
            if row is None:
                continue
            base_offset, end_offset, accepted_at_ms = row
            if accepted_at_ms < at_ms:
                later = first_accepted(connection, generation, topic_id, at_ms, end_offset, found)
                return found if later is None else later
            found = base_offset
        return found

    def read_rows(
        self, connection: Connection, keys: Iterable[RowKey], max_bytes: int
    ) -> Iterator[list[LogRow]]:
        """Yield the rows with these keys, in the order of the keys, in lists of bounded size.

        Args:
          max_bytes: limit for the size of the rows of a list. One row may exceed it.

        Raises:
          LogDamaged: if a row is missing or damaged.
        """
        for step in bounded(keys, max_bytes):
            rows = self.fetch_found(connection, step)
            if len(rows) < len(step):
                there = {row.key for row in rows}
                missing = next(key for key in step if key not in there)
                raise LogDamaged(
                    f"the log lacks a row that was committed: {row_description(missing)}"
                )
            yield rows

    def page(
        self,
        connection: Connection,
        generation: Generation,
        topic_id: int,
        low: int,
        until: int,
    ) -> list[RowHead]:
        """Return the heads of a topic's first rows in one generation, in order. One query.

        These are rows with base offsets in ``[low, until)``, at most ``KEYS_AT_ONCE``.
        """
        return list(islice(heads(connection, generation, topic_id, low, until), KEYS_AT_ONCE))

    def fetch(
        self, connection: Connection, keys: Sequence[RowKey], max_bytes: int
    ) -> Iterator[list[LogRow]]:
        """Yield those rows with these keys that exist, in lists of bounded size.

        Args:
          max_bytes: limit for the size of the rows of a list. One row may exceed it.
        """
        for step in bounded(keys, max_bytes):
            yield self.fetch_found(connection, step)

    def scan(self, connection: Connection, max_bytes: int) -> Iterator[list[LogRow]]:
        """Yield all rows of the log in lists of bounded size. The rows of each topic are in order.

        Args:
          max_bytes: limit for the size of the rows of a list. One row may exceed it.
        """
        for step in self.scan_keys(connection, max_bytes):
            yield self.fetch_found(connection, step)

    def scan_keys(self, connection: Connection, max_bytes: int) -> Iterator[list[RowKey]]:
        """Yield the keys of all rows of the log in lists, as :meth:`scan` yields the rows.

        The caller reads the rows with :meth:`fetch`, perhaps over another connection.
        """
        for generation in self._generations:
            for table in generation.tables:
                yield from bounded(keys_of_table(connection, generation, table), max_bytes)

    def end_offset(self, connection: Connection, topic_id: int) -> int:
        """Return the offset after a topic's last message in the log; 0 for a topic without rows."""
        for generation in reversed(self._generations):
            rows = connection.execute(
                f"SELECT base_offset + message_count FROM {generation.table(topic_id)}"
                f" WHERE topic_id = ? AND base_offset >= 0{generation.guard}"
                " ORDER BY base_offset DESC LIMIT 1",
                (topic_id,),
            ).rows
            if rows:
                return int(rows[0][0])
        return 0

    def accepted_ms(self, connection: Connection, topic_id: int, offsets: Int64s) -> Int64s:
        """Return when the first row of each message was accepted; 0 if the log lacks that row.

        Reads no payloads. Offsets that lie close together share a query.

        Args:
          offsets: the messages of one topic, ascending; int64[n].
        """
        found = np.zeros(len(offsets), np.int64)
        for head, first, last in self._stating(connection, topic_id, offsets):
            found[first:last] = head.accepted_at_ms
        return found

    def holding(
        self, connection: Connection, topic_id: int, offsets: Int64s, max_bytes: int
    ) -> tuple[list[LogRow], int]:
        """Return the rows that state messages for the first time, as far as they fit.

        Offsets that lie close together share a query.

        Args:
          offsets: the messages of one topic, ascending; int64[n].
          max_bytes: limit for the size of the rows together. The first row may exceed it.

        Returns:
          The rows, in order, and how many of the offsets have been searched. The caller searches
          the other offsets with another call.
        """
        if len(offsets) == 1:
            row = self._row_holding(connection, topic_id, int(offsets[0]))
            return [row] if row is not None else [], 1
        keys: list[RowKey] = []
        budget = max_bytes
        for (key, *_), first, _ in self._stating(connection, topic_id, offsets):
            if keys and key.size_bytes > budget:
                return self.fetch_found(connection, keys), first
            keys.append(key)
            budget -= key.size_bytes
        return self.fetch_found(connection, keys), len(offsets)

    def _row_holding(self, connection: Connection, topic_id: int, offset: int) -> LogRow | None:
        for generation in reversed(self._generations):
            row = last_row_to(connection, generation, topic_id, offset)
            if row is not None:
                return row if row.key.end_offset > offset else None
        return None

    def _stating(
        self, connection: Connection, topic_id: int, offsets: Int64s
    ) -> Iterator[tuple[RowHead, int, int]]:
        """Yield the heads of the rows that state messages for the first time, in order.

        With each head it yields the indices ``[first, last)`` of the offsets that the row states.
        Offsets that lie close together share a query.
        """
        at = 0
        while at < len(offsets):
            begun, wanted = at, int(offsets[at])
            heads = self._heads(connection, topic_id, wanted)
            if not heads:
                # All rows of the topic begin after this offset.
                oldest = self.first_offset(connection, topic_id)
                at = len(offsets) if oldest is None else int(offsets.searchsorted(oldest))
            for head in heads:
                if head.key.end_offset <= wanted:
                    continue
                bounds = [head.key.base_offset, head.key.end_offset]
                first, last = np.searchsorted(offsets, bounds).tolist()
                if last > max(first, at):
                    yield head, first, last
                at = max(at, last)
                if at == len(offsets):
                    return
                wanted = int(offsets[at])
            at = max(at, begun + 1)

    def _heads(self, connection: Connection, topic_id: int, offset: int) -> list[RowHead]:
        """Return the heads of some of a topic's rows, in order, from the one near ``offset`` on.

        The first is the last row whose base offset is at most ``offset``. They are up to
        ``_HEADS_AT_ONCE`` rows of one generation. Without a first row, the result is empty.
        """
        for generation in reversed(self._generations):
            found = heads_from_last_to(connection, generation, topic_id, offset, _HEADS_AT_ONCE)
            if found:
                return found
        return []

    def restatements(
        self, connection: Connection, topic_id: int, bases: Sequence[int], max_bytes: int
    ) -> tuple[list[LogRow], int]:
        """Return a topic's restatements with these base offsets, as far as they fit.

        Args:
          bases: negative base offsets, each once, in any order. Some may not exist.
          max_bytes: limit for the size of the rows together. The first row may exceed it.

        Returns:
          The rows, in the order of ``bases``, and how many of ``bases`` have been searched. The
          caller searches the others with another call.
        """
        keys: list[RowKey] = []
        budget = max_bytes
        for low in range(0, len(bases), _HEADS_AT_ONCE):
            step = bases[low : low + _HEADS_AT_ONCE]
            there = {
                key.base_offset: key
                for generation in self._generations
                for key in keys_at(connection, generation, topic_id, step)
            }
            for at, base in enumerate(step, low):
                key = there.get(base)
                if key is None:
                    continue
                if keys and key.size_bytes > budget:
                    return self.fetch_found(connection, keys), at
                keys.append(key)
                budget -= key.size_bytes
        return self.fetch_found(connection, keys), len(bases)

    def first_offset(self, connection: Connection, topic_id: int) -> int | None:
        """Return the lowest offset in a topic's rows, without restatements; None without rows."""
        return next(self._outermost(connection, topic_id, "MIN", 0, NO_END), None)

    def lowest_base(self, connection: Connection, topic_id: int) -> int:
        """Return the base offset of a topic's newest restatement, negative; 0 if it has none."""
        return min(self._outermost(connection, topic_id, "MIN", -NO_END, -1), default=0)

    def first_base(self, connection: Connection, topic_id: int) -> int:
        """Return the base offset of a topic's oldest restatement in the log; 0 if it has none."""
        return next(self._outermost(connection, topic_id, "MAX", -NO_END, -1), 0)

    def _outermost(
        self, connection: Connection, topic_id: int, which: MinMax, low: int, high: int
    ) -> Iterator[int]:
        """Yield a topic's lowest or highest base offset in each generation, oldest first.

        Skips generations without a base offset in ``[low, high]``. ``which`` is "MIN" or "MAX".
        """
        for generation in self._generations:
            found = outermost_base(connection, generation, topic_id, which, low, high)
            if found is not None:
                yield found

    def _start(
        self, connection: Connection, topic_id: int, from_offset: int
    ) -> Iterator[tuple[Generation, int]]:
        """Yield each generation that a read from ``from_offset`` on needs, oldest first.

        With each it yields the base offset at which to begin. If the log of the topic begins after
        ``from_offset``, these are all generations.
        """
        generations = self._generations
        for at in reversed(range(len(generations))):
            low = outermost_base(connection, generations[at], topic_id, "MAX", 0, from_offset)
            if low is not None:
                yield generations[at], low
                break
        else:
            at = -1
        for later in generations[at + 1 :]:
            yield later, 0

    def fetch_found(
        self, connection: Connection, keys: Sequence[RowKey], into: Landing | None = None
    ) -> list[LogRow]:
        """Return the rows with these keys, in that order, without those that do not exist.

        Args:
          into: memory for the bytes of the rows. The rows become invalid when it is cleared.

        Raises:
          LogDamaged: if a row is damaged, or a key names a generation that does not exist.
        """
        # The generations that are going count too, so that a read that began before can finish.
        known = (*self._generations, *self._going)
        by_id = {generation.id: generation for generation in known}
        by_table: dict[str, list[RowKey]] = {}
        for key in keys:
            if key.generation not in by_id:
                raise LogDamaged(f"generation {key.generation} of the log does not exist")
            by_table.setdefault(by_id[key.generation].table(key.topic_id), []).append(key)
        found: dict[tuple[int, int], Buffer] = {}
        for table, wanted in by_table.items():
            found.update(fetch(connection, table, wanted, into))
        return [
            LogRow(key, decoded(key, found[key.topic_id, key.base_offset]))
            for key in keys
            if (key.topic_id, key.base_offset) in found
        ]
