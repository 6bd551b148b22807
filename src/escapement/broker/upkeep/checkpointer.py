"""Writes checkpoints: the index to disk, then the state the journal adds up to.

In this order, always:

1. in one synchronous step, remember how far each lane has come and freeze the index;
2. write what is live of it as a segment, fsync, swap the manifest, fsync;
3. write which checkpoint this is, the state (cursors, attempts, dedup keys, producers,
   offsets), and last trim the journal up to the positions of step 1, in short transactions.

So the journal is never shorter than what the index lacks, and a crash between any two
steps only makes the next start read a little more. The state is taken *after* step 2 and
may be newer than the positions: replaying an entry that it contains changes nothing.

What could not be written (MySQL was away) is kept and goes with the next checkpoint.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.lagbook import LagBook
from escapement.clock import Clock
from escapement.errors import StorageUnavailable
from escapement.storage import checkpoint as state
from escapement.storage.attempts import PART_ROWS, AttemptTable, Parts
from escapement.storage.blocking import Run
from escapement.storage.checkpoint import (
    AttemptPart,
    Checkpoint,
    ChunkRow,
    KeyPart,
    MemberRow,
    MoveRow,
    ProducerRow,
    SubscriptionRow,
)
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.index import DelayedIndex, Lineage, Mark
from escapement.storage.index.checkpoint import Part
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.journal.journalentry import cancellations_id, lapses_id
from escapement.storage.lagtable import LagRow
from escapement.storage.lease import Lease
from escapement.storage.log.log import Log
from escapement.storage.offsets import OffsetSet

_log = logging.getLogger(__name__)

# What is due within so long is delivered from memory, also once it is on disk.
_NEAR_MS: Final = 10_000
# What is due later than this need not be in the system's cache, which what is read sooner uses.
FAR_MS: Final = 60_000


@dataclass(slots=True)
class Progress:
    """How far the log has come, kept by whoever hears of commits."""

    positions: dict[int, JournalPosition]  # by lane: the last group that was taken in
    touched: set[int] = field(default_factory=set)  # topics changed since the last checkpoint
    producers: dict[int, ProducerRow] = field(default_factory=dict)
    keyed: set[int] = field(default_factory=set)  # topics that remember dedup keys
    lags: LagBook = field(default_factory=LagBook)


class Checkpointer:
    """See the module's docstring."""

    def __init__(
        self,
        engine: Engine,
        lease: Lease,
        log: Log,
        log_identity: str,
        base: Mark | None,
        index: DelayedIndex,
        registry: Registry,
        progress: Progress,
        clock: Clock,
        run: Run,
        interval_s: float,
        parts: dict[int, Parts],
        key_parts: dict[int, Parts],
        make_room: Callable[[], Awaitable[None]],
    ) -> None:
        """As the parts of a broker, and:

        Args:
          base: which checkpoint the state was of when this broker started.
          interval_s: seconds between checkpoints that nobody asks for.
          parts: what is stored of attempts, by subscription id.
          key_parts: what is stored of dedup keys, by topic id.
          make_room: waits until the index may have another segment.
        """
        self._engine = engine
        self._lease = lease
        self._journal_log = log
        self._log_identity = log_identity
        self._base = base
        self._mark = Mark(secrets.token_hex(8), 0)
        self._index = index
        self._registry = registry
        self._progress = progress
        self._clock = clock
        self._run = run
        self._interval_s = interval_s
        self.parts = parts
        self._key_parts = key_parts
        self._make_room = make_room
        self._spacious = trio.lowlevel.ParkingLot()
        self._wanted = trio.Event()
        self._lock = trio.Lock()
        self._connection: Connection | None = None
        self._unwritten = Checkpoint()
        self._covered = dict(progress.positions)

    def touch(self, topic_id: int) -> None:
        """A topic's state changed, though no group commit says so."""
        self._progress.touched.add(topic_id)

    def want(self) -> None:
        """Memory is filling: do not wait for the interval."""
        self._wanted.set()

    async def run(self) -> None:
        """Write a checkpoint at each interval, or earlier when wanted, for ever."""
        while True:
            with trio.move_on_after(self._interval_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            if self._index.needs_checkpoint or self._changed or self._has_stale_keys:
                await self.checkpoint()

    async def room(self) -> None:
        """Wait until the index has room in memory."""
        while self._index.is_full:
            self.want()
            await self._spacious.park()

    @property
    def _changed(self) -> bool:
        return self._progress.positions != self._covered or bool(self._unwritten.trims)

    @property
    def _has_stale_keys(self) -> bool:
        now_ms = self._clock.now_ms()
        topics = map(self._registry.active.get, self._progress.keyed)
        return any(
            topic.dedup.is_stale(now_ms, topic.policy.dedup_window_ms)
            for topic in topics
            if topic is not None
        )

    async def checkpoint(self) -> None:
        """Write one now. A database that is away is no error: the rest comes later."""
        async with self._lock:
            await self._make_room()
            self._mark = self._mark._replace(number=self._mark.number + 1)
            lineage = Lineage(self._mark, self._base)
            positions = dict(self._progress.positions)
            fills = self._fills()
            now_ms = self._clock.now_ms()
            index_checkpoint = self._index.begin_checkpoint(now_ms + _NEAR_MS, now_ms + FAR_MS)
            try:
                for group in index_checkpoint.groups():
                    keeps = [self._live(part) for part in group.parts()]
                    await self._run(index_checkpoint.write, group, keeps)
                await self._run(
                    index_checkpoint.finish,
                    self._log_identity,
                    positions,
                    lineage,
                    self._index.forgotten_until_ms,
                )
            except BaseException:
                self._index.abandon(index_checkpoint)
                raise
            self._index.install(index_checkpoint)
            self._spacious.unpark_all()
            checkpoint, restated = self._state(positions, fills)
            await self._write_state(await self._with_attempts(checkpoint, restated))

    def _live(self, part: Part) -> npt.NDArray[np.bool_] | None:
        topic = self._registry.active.get(part.topic_id)
        if topic is None:
            return None  # nobody has touched it: all of it is kept
        now_ms = self._clock.now_ms()
        self._index.forgotten_until_ms = max(self._index.forgotten_until_ms, now_ms)
        return topic.claims.live(part.due_ms, part.offsets, now_ms)

    # -- the state -----------------------------------------------------------------

    def _fills(self) -> list[SubscriptionRow]:
        return [
            SubscriptionRow(shared.record.id, shared.record.fill_from, shared.record.fill_until, 0)
            for topic_id in self._progress.touched
            if (topic := self._registry.active.get(topic_id)) is not None
            for shared in topic.shared.values()
        ]

    def _state(
        self, positions: dict[int, JournalPosition], fills: list[SubscriptionRow]
    ) -> tuple[Checkpoint, list[_Restated]]:
        """Everything that changed since the last one; one synchronous step.

        Returns:
          The checkpoint, and attempts that are to be stated anew with it.
        """
        touched, self._progress.touched = self._progress.touched, set()
        marks, self._progress.producers = self._progress.producers, {}
        restated: list[_Restated] = []
        chunks: dict[tuple[int, int], ChunkRow] = {
            (row.subscription_id, row.chunk): row for row in self._unwritten.chunks
        }
        moves = {(row.topic_id, row.chunk): row for row in self._unwritten.moves}
        attempts = list(self._unwritten.attempts)
        next_offsets = dict(self._unwritten.next_offsets)
        producers = {row.producer_id: row for row in self._unwritten.producers} | marks
        for topic_id in touched:
            topic = self._registry.active.get(topic_id)
            if topic is None:
                continue  # it was deleted
            next_offsets[topic_id] = topic.next_offset
            _take_cursors(topic, chunks)
            for subscription in topic.subscriptions():
                attempts += self._take_attempts(subscription, restated)
            for chunk, data in topic.amendments.moves.dirty_chunks().items():
                moves[topic_id, chunk] = MoveRow(topic_id, chunk, data)
        keys, keys_from = self._take_keys()
        forgotten, members = self._take_groups(touched)
        lags = self._take_lags()
        subscriptions = {row.subscription_id: row for row in self._unwritten.subscriptions}
        subscriptions |= {row.subscription_id: row for row in fills}
        # What was deleted meanwhile must not come back.
        alive = {record.id for record in self._registry.all_subscriptions()}
        alive.update(cancellations_id(record.id) for record in self._registry.topics.values())
        self.parts = {id: parts for id, parts in self.parts.items() if id in alive}
        checkpoint = Checkpoint(
            self._mark,
            [row for row in chunks.values() if _whose(row) in alive],
            [part for part in attempts if part.subscription_id in alive],
            {id: part for id, part in self._unwritten.attempts_from.items() if id in alive},
            keys,
            keys_from,
            next_offsets,
            list(producers.values()),
            list(subscriptions.values()),
            self._journal_log.current,
            positions,
            [row for row in moves.values() if self._registry.exists(row.topic_id)],
            forgotten,
            members,
            lags,
        )
        return checkpoint, restated

    def _take_lags(self) -> list[LagRow]:
        """What was counted since the last checkpoint, as far as its subscription still is."""
        origins = {record.origin_id for record in self._registry.all_subscriptions()}
        lags = {row[:4]: row for row in self._unwritten.lags if row.origin_id in origins}
        changed = self._progress.lags.take_changed(self._clock.now_ms(), origins)
        return list((lags | {row[:4]: row for row in changed}).values())

    def _take_groups(self, touched: set[int]) -> tuple[list[tuple[int, str]], list[MemberRow]]:
        """Groups forgotten since the last checkpoint, and rows of those that have changed."""
        forgotten = dict.fromkeys(self._unwritten.forgotten)
        members = {row[:3]: row for row in self._unwritten.members}
        for topic_id in touched:
            topic = self._registry.active.get(topic_id)
            if topic is None:
                continue
            gone = [(topic_id, group) for group in topic.groups.take_forgotten()]
            if gone:
                forgotten.update(dict.fromkeys(gone))
                members = {key: row for key, row in members.items() if key[:2] not in gone}
            members.update({row[:3]: row for row in topic.groups.dirty_rows(topic_id)})
        exists = self._registry.exists
        return (
            [one for one in forgotten if exists(one[0])],
            [row for row in members.values() if exists(row.topic_id)],
        )

    def _take_keys(self) -> tuple[list[KeyPart], dict[int, int]]:
        """Dedup keys that came since the last checkpoint, or all of a topic; and what goes."""
        now_ms = self._clock.now_ms()
        exists = self._registry.exists
        keys = [part for part in self._unwritten.keys if exists(part.topic_id)]
        keys_from = {id: part for id, part in self._unwritten.keys_from.items() if exists(id)}
        self._key_parts = {id: parts for id, parts in self._key_parts.items() if exists(id)}
        for topic_id in list(self._progress.keyed):
            topic = self._registry.active.get(topic_id)
            if topic is None:
                self._progress.keyed.discard(topic_id)
                continue
            remembered = topic.dedup
            remembered.forget(now_ms, topic.policy.dedup_window_ms)
            parts = self._key_parts.setdefault(topic_id, Parts())
            if parts.wants_rewrite(len(remembered)):
                keys_from[topic_id] = parts.rewrite()
                tables = remembered.all_keys()
            else:
                tables = remembered.take_unstated()
            keys += [KeyPart(topic_id, parts.add(len(one.offsets)), one) for one in tables]
            if not len(remembered):
                self._progress.keyed.discard(topic_id)
        return keys, keys_from

    def _take_attempts(
        self, subscription: Subscription, restated: list[_Restated]
    ) -> list[AttemptPart]:
        """What was counted since the last checkpoint, or all of it into ``restated``."""
        id = subscription.record.id
        parts = self.parts.get(id)
        if parts is None:
            if not subscription.attempts.has_new:
                return []
            parts = self.parts[id] = Parts()
        if parts.wants_rewrite(len(subscription.held)):
            table = subscription.all_attempts(self._clock.now_ms())
            restated.append(_Restated(subscription, parts, table))
            return []
        if not subscription.attempts.has_new:
            return []
        return [
            AttemptPart(id, parts.add(len(piece.offsets)), piece)
            for piece in _pieces(subscription.attempts.take_new())
        ]

    async def _with_attempts(self, checkpoint: Checkpoint, restated: list[_Restated]) -> Checkpoint:
        """The checkpoint with all attempts of some subscriptions, less what is done."""
        attempts = list(checkpoint.attempts)
        attempts_from = dict(checkpoint.attempts_from)
        for subscription, parts, table in restated:
            id = subscription.record.id
            attempts_from[id] = parts.rewrite()
            for piece in _pieces(table):
                # What is done may come back until that is durable.
                open_rows = ~subscription.acked.contains_durably(piece.offsets)
                live = AttemptTable(*(column[open_rows] for column in piece))
                attempts.append(AttemptPart(id, parts.add(len(live.offsets)), live))
                await trio.lowlevel.checkpoint()
        return replace(checkpoint, attempts=attempts, attempts_from=attempts_from)

    async def _write_state(self, checkpoint: Checkpoint) -> None:
        self._unwritten = checkpoint
        try:
            await self._run(self._write, checkpoint)
        except (StorageUnavailable, TransactionAborted) as error:
            _log.warning("the checkpoint's state is not written yet: %s", error)
            return
        self._unwritten = Checkpoint()
        self._covered = dict(checkpoint.trims)

    def _write(self, checkpoint: Checkpoint) -> None:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            state.write(self._engine, self._connection, self._lease, checkpoint)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Restated(NamedTuple):
    """All attempts of a subscription, some of them of messages that are done."""

    subscription: Subscription
    parts: Parts
    table: AttemptTable


def _pieces(table: AttemptTable) -> list[AttemptTable]:
    """The table in parts of bounded size."""
    return [
        AttemptTable(*(column[low : low + PART_ROWS] for column in table))
        for low in range(0, len(table.offsets), PART_ROWS)
    ]


def _whose(row: ChunkRow) -> int:
    """Of lapses the subscription that has them."""
    return min(row.subscription_id, lapses_id(row.subscription_id), key=abs)


def _take_cursors(
    topic: Topic,
    chunks: dict[tuple[int, int], ChunkRow],
) -> None:
    _take_set(cancellations_id(topic.id), topic.amendments.cancelled, chunks)
    for subscription in topic.subscriptions():
        subscription_id = subscription.record.id
        _take_set(subscription_id, subscription.acked, chunks)
        if subscription.lapsed is not None:
            _take_set(lapses_id(subscription_id), subscription.lapsed, chunks)


def _take_set(id: int, offsets: OffsetSet, chunks: dict[tuple[int, int], ChunkRow]) -> None:
    for chunk, data in offsets.dirty_chunks().items():
        chunks[id, chunk] = ChunkRow(id, chunk, data)
    offsets.mark_clean()
