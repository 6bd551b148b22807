"""Fills the index from the log while the broker serves, after a start without a usable index.

A broker that takes over on another machine has no index (B5, B8). Reading the whole log first would
delay overdue messages by minutes if many millions are pending. So the broker serves at once, and
this task adds the messages of earlier owners to the index:

1. The rows of the log whose lowest due time is from ``_RECENT_MS`` before the start to
   ``_AHEAD_MS`` from now, in the order of that time. An index of the database finds them.
2. The rows whose lowest due time is before that, in the same order. Most of them have only messages
   that are finished: the log keeps these for a day or more. So they come after step 1.
3. All other rows, in the order of the tables, which is the fastest.

When time comes close to the end of what step 1 has read, the task does step 1 again for the next
``_AHEAD_MS``, also in the middle of the other steps.

A message that falls due is late only if step 1 cannot keep up with the time. It is never lost: a
subscription reads it in the index when it has been added, as it does after a late window. A
subscription that keeps an order reads nothing past the *horizon*, up to which steps 1 and 2 have
read everything. So no message passes an earlier one of its key that is still missing.

The progress is not stored. Until the end, checkpoints claim that the index covers none of the
journal (``Progress.claimed``), and the journal is not trimmed. So after a crash or a stop in the
meantime, the next start discards the index and begins again.

Adding a message twice does no harm. Messages that nobody wants any more are left out, as a
checkpoint leaves them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

import numpy as np
import trio

from escapement.broker.log.backfill import Backfill
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.progress import Progress
from escapement.clock import Clock
from escapement.errors import StorageUnavailable
from escapement.event_log import EventLog
from escapement.failpoints import failpoint
from escapement.message import MessageBatch
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Engine
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.index import DelayedIndex
from escapement.storage.log.earlier_rows import BEGINNING, EarlierRows, Place
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow, RowHead, RowKey, bounded

_log = EventLog(__name__)

T = TypeVar("T")

# How long before the start a row was due that is read first. Messages that have waited for a new
# owner are usually due within a lease or two.
_RECENT_MS: Final = 60_000
# How far ahead of the clock the rows due soon are read, and how close the clock may come to the end
# of these before the next are read.
_AHEAD_MS: Final = 60_000
_CLOSE_MS: Final = 30_000
# The most heads of rows that are examined at once.
_HEADS: Final = 1024
_RETRY_S: Final = 1.0


class Backfiller:
    """The task that fills a lost index from the log.

    Args:
      epoch: the epoch of the lease. Rows of this epoch are in the index already.
      room: waits until the index has room for messages in memory.
      want_checkpoint: requests a checkpoint.
      on_step: called with a topic after each step that may have made messages of it deliverable.
      step_bytes: the most bytes of rows that are added in one step of the event loop.
    """

    def __init__(
        self,
        backfill: Backfill,
        engine: Engine,
        log: Log,
        epoch: int,
        index: DelayedIndex,
        registry: Registry,
        progress: Progress,
        clock: Clock,
        run: Run,
        room: Callable[[], Awaitable[None]],
        want_checkpoint: Callable[[], None],
        on_step: Callable[[Topic], None],
        step_bytes: int,
    ) -> None:
        self._step_bytes = step_bytes
        self._backfill = backfill
        self._log = log
        self._rows = EarlierRows(log.generations, epoch)
        self._index = index
        self._registry = registry
        self._progress = progress
        self._clock = clock
        self._run = run
        self._room = room
        self._want_checkpoint = want_checkpoint
        self._on_step = on_step
        self._connection = KeptConnection(engine)
        self._recent_ms = clock.now_ms() - _RECENT_MS
        self._soon_ms = (
            self._recent_ms
        )  # the rows from ``_recent_ms`` to this time are in the index
        self._heads_before: Iterator[RowHead] | None = None
        self._place = BEGINNING  # the rows of the tables before this place are in the index
        self._heads_after: Iterator[tuple[Place, RowHead]] | None = None
        self._added = 0

    async def run(self) -> None:
        """Fill the index, and return when it has all messages."""
        if not self._backfill.is_running:
            return
        _log.info("index.filling", "serving without an index, which is being filled from the log")
        began_s = trio.current_time()
        while True:
            try:
                while await self._step():
                    pass
                break
            except StorageUnavailable:
                self._heads_before = self._heads_after = None
                await trio.sleep(_RETRY_S)
        self._finish()
        seconds = trio.current_time() - began_s
        _log.info(
            "index.filled",
            "the index is complete: %d messages of the log were added in %.1f s",
            self._added,
            seconds,
            messages=self._added,
            seconds=round(seconds, 1),
        )

    def close(self) -> None:
        """Close the connection to the database."""
        self._connection.close()

    # -- steps ---------------------------------------------------------------------

    async def _step(self) -> bool:
        """Add some rows; return False if there are no more."""
        now_ms = self._clock.now_ms()
        if self._soon_ms == self._recent_ms and not await self._run(self._has_before):
            self._backfill.reach(self._recent_ms)
        if now_ms + _CLOSE_MS >= self._soon_ms:
            await self._add_soon(now_ms + _AHEAD_MS)
            return True
        if self._backfill.reached_ms < self._soon_ms:
            await self._add_before()
            return True
        if self._heads_after is None:
            self._heads_after = await self._run(self._begin_after)
        found = await self._run(self._next, self._heads_after)
        # Rows that are due sooner were added as such.
        await self._add([head for _, head in found if head.min_due_ms >= self._soon_ms])
        if found:
            self._place = found[-1][0]
        return len(found) == _HEADS

    async def _add_soon(self, until_ms: int) -> None:
        """Add the next rows with messages that are due before ``until_ms``, the earliest first."""
        raises_horizon = self._backfill.reached_ms >= self._soon_ms
        heads = await self._run(self._begin_due, self._soon_ms, until_ms)
        while found := await self._run(self._next, heads):
            await self._add(found, in_order=raises_horizon)
        self._soon_ms = until_ms
        if raises_horizon:
            self._reach(until_ms)

    async def _add_before(self) -> None:
        """Add some of the rows with messages that were due before those of ``_add_soon``."""
        if self._heads_before is None:
            low_ms = self._backfill.reached_ms
            self._heads_before = await self._run(self._begin_due, low_ms, self._recent_ms)
        found = await self._run(self._next, self._heads_before)
        await self._add(found, in_order=True)
        self._reach(found[-1].min_due_ms if len(found) == _HEADS else self._soon_ms)

    def _reach(self, due_ms: int) -> None:
        """Raise the horizon, and let subscriptions that keep an order read up to it."""
        self._backfill.reach(due_ms)
        for topic in list(self._registry.active.values()):
            if topic.keeps_order:
                self._on_step(topic)

    def _has_before(self) -> bool:
        """Return whether the log has rows for ``_add_before``."""
        with self._connection.use() as connection:
            return any(self._rows.due_between(connection, 0, self._recent_ms))

    def _begin_due(self, low_ms: int, until_ms: int) -> Iterator[RowHead]:
        with self._connection.use() as connection:
            return self._rows.due_between(connection, low_ms, until_ms)

    def _begin_after(self) -> Iterator[tuple[Place, RowHead]]:
        with self._connection.use() as connection:
            return self._rows.after(connection, self._place)

    def _next(self, heads: Iterator[T]) -> list[T]:
        with self._connection.use():  # closes the connection after an error
            return list(islice(heads, _HEADS))

    # -- adding --------------------------------------------------------------------

    async def _add(self, heads: Sequence[RowHead], *, in_order: bool = False) -> None:
        """Add the messages of rows.

        Args:
          in_order: whether the heads ascend by due time, so that each step raises the horizon.
        """
        wanted = [head for head in heads if self._may_want(head)]
        done = 0
        for keys in bounded([head.key for head in wanted], self._step_bytes):
            await self._room()
            rows = await self._run(self._fetch, keys)
            failpoint("backfill")
            self._take(rows)
            done += len(keys)
            if in_order:
                self._reach(wanted[done - 1].min_due_ms)

    def _may_want(self, head: RowHead) -> bool:
        """Return whether a subscription may still want a message of a row."""
        key = head.key
        if not self._registry.exists(key.topic_id):
            return False
        if key.base_offset < 0:
            return True  # a restatement: its base does not tell its offsets
        retention = self._registry.activate(key.topic_id).retention
        now_ms = self._note_time()
        return retention.may_keep(key.base_offset, key.end_offset, head.max_due_ms, now_ms)

    def _fetch(self, keys: Sequence[RowKey]) -> list[LogRow]:
        with self._connection.use() as connection:
            return self._log.fetch_found(connection, keys)

    def _take(self, rows: Sequence[LogRow]) -> None:
        """Add the messages of rows to the index; those of one topic together."""
        by_topic: dict[int, list[LogRow]] = {}
        for row in rows:
            by_topic.setdefault(row.key.topic_id, []).append(row)
        for topic_id, some in by_topic.items():
            if not self._registry.exists(topic_id):
                continue
            topic = self._registry.activate(topic_id)
            first = sorted((row for row in some if row.key.base_offset >= 0), key=_base_offset)
            if first:
                self._take_part(topic, first)
            for row in some:
                if row.key.base_offset < 0:
                    self._take_part(topic, [row])
            self._on_step(topic)
        if self._index.needs_checkpoint:
            self._want_checkpoint()

    def _take_part(self, topic: Topic, rows: Sequence[LogRow]) -> None:
        offsets = np.concatenate([row.offsets for row in rows])
        due_ms = np.concatenate([row.content.due_ms for row in rows])
        batch = MessageBatch.concat([row.content.batch() for row in rows])
        self._added += topic.backfill(offsets, due_ms, batch, self._note_time())

    def _note_time(self) -> int:
        """Return the time; messages that are due by then may be left out, because they finished."""
        now_ms = self._clock.now_ms()
        self._index.forgotten_until_ms = max(self._index.forgotten_until_ms, now_ms)
        return now_ms

    def _finish(self) -> None:
        self._backfill.end()
        self._progress.claimed = None
        self._want_checkpoint()
        for topic in list(self._registry.active.values()):
            self._on_step(topic)


def _base_offset(row: LogRow) -> int:
    return row.key.base_offset
