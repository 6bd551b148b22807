"""Writes checkpoints: the index to disk, then the state to the database.

Always in this order:

1. In one synchronous step, note the journal position of each lane (a task that writes group
   commits) and freeze the index's memory.
2. Write the live messages in that memory as a segment, fsync, swap the manifest, fsync.
3. Write the mark that identifies this checkpoint, and the state (cursors, attempts, dedup keys,
   producers, offsets). Last, trim the journal up to the positions of step 1. All in short
   transactions.

So the journal always covers the messages that the index lacks, and a crash between any two steps
only makes the next start read a little more. The state is collected *after* step 2, so it may be
newer than the positions. This does no harm: replaying a journal entry over a state that contains it
changes nothing.

If the database cannot be reached, the state is written with the next checkpoint.
:mod:`~escapement.broker.upkeep.unwritten` collects the state.
"""

from __future__ import annotations

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
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.index import DelayedIndex, Lineage, Mark
from escapement.storage.index.checkpoint import Part
from escapement.storage.lease import Lease
from escapement.storage.state import checkpoint as checkpoints
from escapement.storage.state.checkpoint import AttemptPart, Checkpoint

# Messages due within this time go into the block cache when a checkpoint writes them to disk, so
# they are delivered from memory.
_DUE_SOON_MS: Final = 10_000
# A large segment whose messages are mostly due later than this bypasses the system's page cache,
# which it would fill with data that is not read soon.
FAR_MS: Final = 60_000


class Checkpointer:
    """The task that writes checkpoints."""

    def __init__(
        self,
        connections: ConnectionPool,
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
        """Keep the parts of the broker that the task uses.

        Args:
          base: the last checkpoint in the database when this broker started; None if none.
          interval_s: seconds between checkpoints; ``want`` requests one earlier.
          make_room: waits until the index has fewer segments than it may have at most.
        """
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
        self._outage = Outage(
            "checkpoint.failed", "cannot write the state; the next checkpoint writes it"
        )
        self._spacious = trio.lowlevel.ParkingLot()
        self._wanted = trio.Event()
        self._lock = trio.Lock()
        self._connections = connections

    def touch(self, topic_id: int) -> None:
        """Have the next checkpoint write a topic's state, which changed without a group commit."""
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

    @property
    def is_full(self) -> bool:
        """Whether the index has no room in memory."""
        return self._index.is_full

    async def room(self) -> None:
        """Wait until the index has room in memory; checkpoints make room."""
        while self.is_full:
            self.want()
            await self._spacious.park()

    async def checkpoint(self) -> None:
        """Write a checkpoint now.

        If the database cannot be reached, only the index is written. The next checkpoint writes the
        state.
        """
        async with self._lock:
            await self._make_room()
            self._mark = self._mark._replace(number=self._mark.number + 1)
            lineage = Lineage(self._mark, self._base)
            positions = self._progress.covered()
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
                    dict(self._progress.finished),
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
            return None  # keep all messages of a passive topic
        now_ms = self._clock.now_ms()
        self._index.forgotten_until_ms = max(self._index.forgotten_until_ms, now_ms)
        return topic.retention.live(part.due_ms, part.offsets, now_ms)

    async def _with_attempts(self, checkpoint: Checkpoint, rewrites: list[Rewrite]) -> Checkpoint:
        """Return the checkpoint with all attempts of the subscriptions in ``rewrites`` added.

        Attempts of messages that are durably acknowledged are left out.
        """
        attempts = list(checkpoint.attempts)
        attempts_from = dict(checkpoint.attempts_from)
        for subscription, parts, table in rewrites:
            id = subscription.record.id
            attempts_from[id] = parts.rewrite()
            for piece in table.pieces():
                # A crash may lose an acknowledgement that is not durable. The message is then
                # redelivered, and its attempts are needed.
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
        with self._connections.use() as connection:
            checkpoints.write(self._connections.engine, connection, self._lease, checkpoint)
