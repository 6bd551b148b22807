"""Reads the log, for ordered subscriptions, fills and lookups of single messages.

A *row* of the log has messages that one group commit stored in one topic. The row that stated a
message first is its *first row*. A *restatement* is a row that states earlier messages again, with
a new due time or unchanged. Old rows are deleted. A message whose first row was deleted is in its
last restatement, if it has one. The topic's *moves* have, for each restated message, the key of
that row (its *base*).

The reader has one database connection, which serves one read at a time and is replaced after a
failure. Requests for single messages of a topic that arrive during a read share the next read. A
thousand messages that are rescheduled one by one are often in a few rows, which are then read only
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np
import trio

from escapement.broker.log.row_cache import Kept, RowCache
from escapement.message import Bools, Int64s, MessageBatch
from escapement.storage.blocking import Run
from escapement.storage.encoding.moves import Moves
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import NO_END, LogRow
from escapement.storage.log.published import Published

T = TypeVar("T")

# The most requests for messages of one topic that share a read.
_ASKING_AT_ONCE: Final = 1024
# How many bytes one read may return, besides its first row.
STEP_BYTES: Final = 1 << 20


class LogPart(NamedTuple):
    """One row of the log: consecutive messages from ``base_offset`` on, with their due times."""

    base_offset: int
    due_ms: Int64s
    batch: MessageBatch
    accepted_at_ms: int

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
        return self.base_offset + len(self.batch)


@dataclass(slots=True, eq=False)
class _Asked:
    """A request for published messages that waits for its answer."""

    offsets: Int64s
    max_bytes: int
    # Set when the answer is there, or when this request must read for all.
    turn: trio.Event = field(default_factory=trio.Event)
    answer: tuple[Published, int] | None = None

    def part_of(self, found: Published, end: int) -> tuple[Published, int]:
        """Return the answer to this request from the messages that a read has found.

        Args:
          end: the read covered the requested offsets below this one.
        """
        count = int(self.offsets.searchsorted(end))
        return found.of_these(self.offsets[:count]), count


class LogReader:
    """The reader of the log of all topics."""

    def __init__(self, connections: ConnectionPool, log: Log, run: Run) -> None:
        self._log = log
        self._run = run
        self._connections = connections
        self._alone = trio.Lock()
        self._asked: dict[int, list[_Asked]] = {}  # by topic
        self._kept = RowCache()

    async def read(self, topic_id: int, from_offset: int, until_offset: int) -> list[LogPart]:
        """Return the first of the log rows that have a topic's messages in a range of offsets.

        Returns rows of up to ``STEP_BYTES`` besides the first row. The list is empty if the log has
        no message of the range any more.

        Args:
          from_offset: the beginning of the range.
          until_offset: its end, at most the end of the messages known to be committed.

        Raises:
          StorageUnavailable: if the database cannot be reached.
          LogDamaged: if a row fails its checksum.
        """
        parts, _ = await self.read_due(topic_id, from_offset, until_offset, 0)
        return parts

    async def read_due(
        self,
        topic_id: int,
        from_offset: int,
        until_offset: int,
        min_due_ms: int,
        max_bytes: int = STEP_BYTES,
    ) -> tuple[list[LogPart], int]:
        """Read like ``read``, but skip rows in which all messages are due before ``min_due_ms``.

        Args:
          max_bytes: how many bytes of rows to return besides the first row.

        Returns:
          The rows, possibly none, and the offset at which the next read must begin.
        """
        async with self._alone:
            return await self._run(
                self._read_due, topic_id, from_offset, until_offset, min_due_ms, max_bytes
            )

    def _read_due(
        self,
        topic_id: int,
        from_offset: int,
        until_offset: int,
        min_due_ms: int,
        max_bytes: int,
    ) -> tuple[list[LogPart], int]:
        with self._connections.use() as connection:
            rows, reached = self._log.read_due(
                connection, topic_id, from_offset, until_offset, min_due_ms, max_bytes
            )
        return [_part(row) for row in rows], reached

    async def first_accepted(self, topic_id: int, at_ms: int, until_offset: int) -> int:
        """Return the offset of the topic's first message accepted at ``at_ms`` or later.

        Returns ``until_offset`` if no message before that offset was accepted so late.

        Raises:
          StorageUnavailable: if the database cannot be reached.
        """
        return await self._ask(self._log.first_accepted, topic_id, at_ms, until_offset)

    async def published(
        self, topic_id: int, offsets: Int64s, moves: Moves, max_bytes: int = STEP_BYTES
    ) -> tuple[Published, int]:
        """Return messages by their offsets, from their first rows or from restatements.

        Looks up as many of the offsets, from the first on, as one read covers.

        Args:
          offsets: the offsets of committed messages, ascending; int64[n].
          moves: the topic's moves, which name the row that restates a message.
          max_bytes: how many bytes to read besides the first row. It applies to first rows and to
            restatements separately.

        Returns:
          The messages that the log has, and how many of the offsets were looked up: at least one.

        Raises:
          StorageUnavailable: if the database cannot be reached.
          LogDamaged: if a row fails its checksum.
        """
        generations = [generation.id for generation in self._log.generations]
        kept = self._kept.find(topic_id, offsets, generations)
        if kept is not None:
            await trio.lowlevel.checkpoint()
            return kept, len(offsets)
        asked, waiting = _Asked(offsets, max_bytes), self._asked.setdefault(topic_id, [])
        waiting.append(asked)
        # One of the waiting requests reads for all requests of its topic, until it has its own
        # answer. Then the next one takes its turn.
        reads = len(waiting) == 1
        try:
            if not reads:
                await asked.turn.wait()
                reads = asked.answer is None
            while asked.answer is None:
                async with self._alone:
                    await self._answer(topic_id, waiting, moves)
        finally:
            if asked.answer is None:
                waiting.remove(asked)
                reads = reads or asked.turn.is_set()
            if reads and waiting:
                waiting[0].turn.set()
            elif not waiting:
                self._asked.pop(topic_id, None)
        return asked.answer

    async def _answer(self, topic_id: int, waiting: list[_Asked], moves: Moves) -> None:
        """Read for all waiting requests of a topic at once; answer those that the read covers."""
        asking = waiting[:_ASKING_AT_ONCE]
        offsets = np.unique(np.concatenate([asked.offsets for asked in asking]))
        max_bytes = max(asked.max_bytes for asked in asking)
        while True:
            bases = moves.bases(offsets)
            found, count = await self._run(self._published, topic_id, offsets, bases, max_bytes)
            if len(found.offsets) == count:
                break
            lost = ~np.isin(offsets[:count], found.offsets, assume_unique=True)
            # Read again if missing messages were restated during the read and their rows deleted.
            if (moves.bases(offsets[:count][lost]) == bases[:count][lost]).all():
                break
        end = int(offsets[count]) if count < len(offsets) else NO_END
        for asked in asking:
            if asked.offsets[0] < end and asked in waiting:
                asked.answer = asked.part_of(found, end)
                asked.turn.set()
                waiting.remove(asked)

    def _published(
        self, topic_id: int, offsets: Int64s, bases: Int64s, max_bytes: int
    ) -> tuple[Published, int]:
        with self._connections.use() as connection:
            rows, count = self._log.holding(connection, topic_id, offsets, max_bytes)
            read = [Kept(row.key, Published.of(row)) for row in rows]
            self._kept.keep(read)
            found = Published.concat([row.content.of_these(offsets) for row in read])
            if len(found.offsets) == count:
                return found, count
            missing = ~np.isin(offsets[:count], found.offsets, assume_unique=True)
            missing &= bases[:count] < 0
            if not missing.any():
                return found, count
            # The first rows of these messages were deleted. Read their restatements, in the order
            # of the messages.
            wanted = list(dict.fromkeys(bases[:count][missing].tolist()))
            rows, known = self._log.restatements(connection, topic_id, wanted, max_bytes)
        if known < len(wanted):
            left = np.isin(bases[:count], wanted[known:]) & missing
            count = int(left.argmax())
        asked, bases = offsets[:count][missing[:count]], bases[:count][missing[:count]]
        again = [Published.of(row).of_these(asked[bases == row.key.base_offset]) for row in rows]
        end = offsets[count] if count < len(offsets) else NO_END
        both = Published.concat([found.pick(found.offsets < end), *again])
        return both.take(np.argsort(both.offsets)), count

    async def first_offset(self, topic_id: int, end_offset: int) -> int:
        """Return the lowest offset of a topic's messages whose first row the log still has.

        Returns ``end_offset`` if the log has no first row of the topic.

        Raises:
          StorageUnavailable: if the database cannot be reached.
        """
        first = await self._ask(self._log.first_offset, topic_id)
        return end_offset if first is None else first

    async def forgotten(
        self, topic_id: int, offsets: Int64s, end_offset: int, moves: Moves
    ) -> Bools:
        """Return which of these messages no row of the log has any more; bool[n].

        Args:
          end_offset: the end of the topic's log.
          moves: the topic's moves, which have an entry for each restated message.

        Raises:
          StorageUnavailable: if the database cannot be reached.
        """
        gone: Bools = offsets < await self.first_offset(topic_id, end_offset)
        if gone.any() and not moves.empty:
            lost = await self.unstated(topic_id, offsets, moves)
            gone &= lost | ~moves.contains(offsets)
        return gone

    async def unstated(self, topic_id: int, offsets: Int64s, moves: Moves) -> Bools:
        """Return which messages have an entry in ``moves`` whose row was deleted; bool[n].

        An entry of the moves may outlive the row that it names: until a checkpoint has removed the
        entry, and as long as a subscription may still read a stale key of the message.

        Raises:
          StorageUnavailable: if the database cannot be reached.
        """
        bases = moves.bases(offsets)
        if not bases.any():
            return moves.contains(offsets)
        # A message that is restated during this read gets another base, and is excluded below.
        oldest = await self.first_base(topic_id)
        lost = bases > oldest if oldest else np.ones(len(offsets), bool)
        gone: Bools = lost & moves.contains(offsets)
        gone &= moves.bases(offsets) == bases
        return gone

    async def lowest_base(self, topic_id: int) -> int:
        """Return the key of the topic's newest restatement, which is negative; 0 without one."""
        return await self._ask(self._log.lowest_base, topic_id)

    async def first_base(self, topic_id: int) -> int:
        """Return the key of the oldest restatement of the topic in the log; 0 without one."""
        return await self._ask(self._log.first_base, topic_id)

    async def accepted_ms(self, topic_id: int, offsets: Int64s, moves: Moves) -> Int64s:
        """Return when the broker accepted each message; 0 if the log does not have it; int64[n].

        Args:
          offsets: ascending; int64[n].
          moves: the topic's moves, which name the row that restates a message.

        Raises:
          StorageUnavailable: if the database cannot be reached.
        """
        found = await self._ask(self._log.accepted_ms, topic_id, offsets)
        left = np.flatnonzero((found == 0) & moves.contains(offsets))
        _, published_ms = await self.times(topic_id, offsets[left], moves)
        found[left] = np.maximum(published_ms, 0)
        return found

    async def times(self, topic_id: int, offsets: Int64s, moves: Moves) -> tuple[Int64s, Int64s]:
        """Return the original due times of messages, and the times of their publication.

        Args:
          offsets: ascending; int64[n].
          moves: the topic's moves, which name the row that restates a message.

        Returns:
          int64[n] each; -1 for a message that the log does not have any more.

        Raises:
          StorageUnavailable: if the database cannot be reached.
          LogDamaged: if a row fails its checksum.
        """
        due_ms, published_ms = np.full((2, len(offsets)), -1)
        at = 0
        while at < len(offsets):
            found, count = await self.published(topic_id, offsets[at:], moves)
            rows = np.searchsorted(offsets, found.offsets)
            due_ms[rows], published_ms[rows] = found.due_ms, found.published_ms
            at += count
        return due_ms, published_ms

    async def _ask(self, question: Callable[..., T], *arguments: object) -> T:
        """Call a method of ``Log`` in a thread, when the reads before it have ended."""
        async with self._alone:
            return await self._run(self._asked_now, question, *arguments)

    def _asked_now(self, question: Callable[..., T], *arguments: object) -> T:
        with self._connections.use() as connection:
            return question(connection, *arguments)

    async def settled(self) -> None:
        """Wait until the read in progress, and those that wait for it, have ended."""
        async with self._alone:
            pass


def _part(row: LogRow) -> LogPart:
    content = row.content
    return LogPart(row.key.base_offset, content.due_ms, content.batch(), content.accepted_at_ms)
