"""Writes checkpoints: the index to disk, then the state to the database.

Always in this order:

1. In one synchronous step, note the position of each lane and freeze the index.
2. Write its live messages as a segment, fsync, swap the manifest, fsync.
3. Write the mark of this checkpoint and the state (cursors, attempts, dedup keys, producers,
   offsets). Last, trim the journal up to the positions of step 1. All in short transactions.

So the journal always covers the messages that the index lacks, and a crash between any two steps
only makes the next start read a little more. The state is taken *after* step 2 and may be newer
than the positions: replaying an entry that it contains changes nothing.

State that could not be written (MySQL was away) is written with the next checkpoint.
:mod:`~escapement.broker.upkeep.unwritten` collects the state to be written.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import trio

from escapement.broker.outage import Outage
from escapement.broker.registry.registry import Registry
from escapement.broker.upkeep.progress import Progress
from escapement.broker.upkeep.unwritten import Rewrite, Unwritten
from escapement.clock import Clock
from escapement.message import Bools
from escapement.storage.blocking import Run
from escapement.storage.encoding.attempts import AttemptTable
from escapement.storage.engine.base import Engine
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.index import DelayedIndex, Lineage, Mark
from escapement.storage.index.checkpoint import Part
from escapement.storage.lease import Lease
from escapement.storage.state import checkpoint as checkpoints
from escapement.storage.state.checkpoint import AttemptPart, Checkpoint

_log = logging.getLogger(__name__)

# Messages due within this time are delivered from memory, even if they are on disk.
_DUE_SOON_MS: Final = 10_000
# Messages due later than this leave the page cache to those that are read sooner.
FAR_MS: Final = 60_000


class Checkpointer:
    """The task that writes checkpoints."""

    def __init__(
        self,
        engine: Engine,
        lease: Lease,
        log_identity: str,
        base: Mark | None,
        index: DelayedIndex,
        registry: Registry,
        progress: Progress,
        unwritten: Unwritten,
        clock: Clock,
        run: Run,
        interval_s: float,
        make_room: Callable[[], Awaitable[None]],
    ) -> None:
        """Take the parts of the broker.

        Args:
          base: the checkpoint that the state had when this broker started.
          interval_s: seconds between checkpoints that are not requested.
          make_room: waits until the index may have another segment.
        """
        self._engine = engine
        self._lease = lease
        self._log_identity = log_identity
        self._base = base
        self._mark = Mark(secrets.token_hex(8), 0)
        self._index = index
        self._registry = registry
        self._progress = progress
        self.unwritten = unwritten
        self._clock = clock
        self._run = run
        self._interval_s = interval_s
        self._make_room = make_room
        self._outage = Outage("cannot write the state; the next checkpoint writes it")
        self._spacious = trio.lowlevel.ParkingLot()
        self._wanted = trio.Event()
        self._lock = trio.Lock()
        self._connection = KeptConnection(engine)

    def touch(self, topic_id: int) -> None:
        """Note that a topic's state changed without a group commit."""
        self._progress.touched.add(topic_id)

    def want(self) -> None:
        """Request a checkpoint before the interval ends, because memory is filling."""
        self._wanted.set()

    async def run(self) -> None:
        """Write a checkpoint at each interval, or earlier when requested, forever."""
        while True:
            with trio.move_on_after(self._interval_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            unwritten = self.unwritten
            if self._index.needs_checkpoint or unwritten.is_there or unwritten.has_stale_keys:
                await self.checkpoint()

    async def room(self) -> None:
        """Wait until the index has room in memory."""
        while self._index.is_full:
            self.want()
            await self._spacious.park()

    async def checkpoint(self) -> None:
        """Write a checkpoint now; if the database is away, its state is written later."""
        async with self._lock:
            await self._make_room()
            self._mark = self._mark._replace(number=self._mark.number + 1)
            lineage = Lineage(self._mark, self._base)
            positions = dict(self._progress.positions)
            fills = self.unwritten.fills()
            now_ms = self._clock.now_ms()
            index_checkpoint = self._index.begin_checkpoint(now_ms + _DUE_SOON_MS, now_ms + FAR_MS)
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
            checkpoint, rewrites = self.unwritten.take(self._mark, positions, fills)
            await self._write_state(await self._with_attempts(checkpoint, rewrites))

    def _live(self, part: Part) -> Bools | None:
        topic = self._registry.active.get(part.topic_id)
        if topic is None:
            return None  # a passive topic: keep everything
        now_ms = self._clock.now_ms()
        self._index.forgotten_until_ms = max(self._index.forgotten_until_ms, now_ms)
        return topic.retention.live(part.due_ms, part.offsets, now_ms)

    async def _with_attempts(self, checkpoint: Checkpoint, rewrites: list[Rewrite]) -> Checkpoint:
        """Add all attempts of unfinished messages, for the subscriptions to be rewritten."""
        attempts = list(checkpoint.attempts)
        attempts_from = dict(checkpoint.attempts_from)
        for subscription, parts, table in rewrites:
            id = subscription.record.id
            attempts_from[id] = parts.rewrite()
            for piece in table.pieces():
                # A message may be redelivered until its acknowledgement is durable.
                open_rows = ~subscription.acked.contains_durably(piece.offsets)
                live = AttemptTable(*(column[open_rows] for column in piece))
                attempts.append(AttemptPart(id, parts.add(len(live.offsets)), live))
                await trio.lowlevel.checkpoint()
        return replace(checkpoint, attempts=attempts, attempts_from=attempts_from)

    async def _write_state(self, checkpoint: Checkpoint) -> None:
        self.unwritten.keep(checkpoint)
        with self._outage:
            await self._run(self._write, checkpoint)
            self.unwritten.stored()

    def _write(self, checkpoint: Checkpoint) -> None:
        with self._connection.use() as connection:
            checkpoints.write(self._engine, connection, self._lease, checkpoint)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
