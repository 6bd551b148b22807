"""Deletes the oldest generations of the log when nothing needs them any more.

A *generation* is a set of log tables, which is dropped as a whole. In each round, one task examines
the oldest generation and, after deleting it, the next one. A generation may be deleted when

1. every namespace with messages in it permits it: they are older than its ``retention_ms``, or
   newer generations have ``retention_bytes`` of its messages;
2. no subscription must still read it: an exclusive or failover subscription has acknowledged all
   messages in it, and no shared subscription has to read its past there (broker/upkeep/filler.py);
3. none of its messages is live (``Retention.live``), or the live ones were *relocated*: restated in
   the current generation (broker/upkeep/relocation.py);
4. its finished messages are archived, if the namespace's policy asks for that
   (broker/upkeep/archive_hold.py);
5. no group commit is writing to it, and the journal names none of its rows, so recovery after a
   crash does not ask for them. A checkpoint removes such journal entries.

These results stay true while the next condition is examined: a finished or relocated message stays
so for the existing subscriptions. If a topic gets another subscription meanwhile (created or
sought), the topic is examined again. Then the generation is *retired* in one synchronous step, and
readers find that the log begins later. The retired generation is durably marked, running reads end,
and its tables are dropped (storage/cleanup/forgetting.py).

At the end of a round, the task also shrinks what topics remember about messages before the log's
beginning: *moves* (the due time of a rescheduled or relocated message, and the row that states it
last) and *lapses* (the message expired or was dropped before a consumer got it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final, TypeVar

import numpy as np
import trio

from escapement.broker.log.backfill import Backfill
from escapement.broker.log.log_reader import LogReader
from escapement.broker.outage import Outage
from escapement.broker.registry.changes import step_by_step
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.archive_hold import ArchiveHold
from escapement.broker.upkeep.checkpointer import Checkpointer
from escapement.broker.upkeep.relocation import Relocation
from escapement.clock import Clock
from escapement.errors import NotFound
from escapement.event_log import EventLog
from escapement.failpoints import failpoint
from escapement.storage.blocking import Run
from escapement.storage.cleanup import forgetting
from escapement.storage.cleanup.forgetting import Holding
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index import DelayedIndex
from escapement.storage.lease import Lease
from escapement.storage.log.generation import Generation
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import RowHead, RowKey

_log = EventLog(__name__)

T = TypeVar("T")

ROUND_S: Final = 60.0
# Bytes of log rows that are read in one step, and the pause between two steps. So relocation reads
# at most about 50 MB/s.
_STEP_BYTES: Final = 1 << 20
_BREATH_S: Final = 0.02
# The log is sparse when it is at least this many times as large as the index. Only then are live
# messages relocated. So the log is never much larger, and a generation that is mostly live is not
# rewritten repeatedly.
_SPARSE: Final = 4
# A generation does not end early before it has this age, because each one costs a few tables.
_NEXT_MS: Final = 60_000
# Lower than the base offset of every log row. Rows that restate messages have negative ones.
_LOWEST: Final = -(1 << 62)


class Forgetter:
    """The task that deletes old generations of the log."""

    def __init__(
        self,
        engine: Engine,
        lease: Lease,
        log: Log,
        index: DelayedIndex,
        registry: Registry,
        pipeline: CommitPipeline,
        checkpointer: Checkpointer,
        reader: LogReader,
        clock: Clock,
        run: Run,
        sparse_bytes: int,
        backfill: Backfill,
    ) -> None:
        """Keep the parts of the broker that the task uses.

        Args:
          sparse_bytes: the smallest size at which the current generation ends early.
          backfill: whether the log is being read to fill the index. Meanwhile nothing is deleted.
        """
        self._engine = engine
        self._lease = lease
        self._log = log
        self._index = index
        self._registry = registry
        self._pipeline = pipeline
        self._checkpointer = checkpointer
        self._reader = reader
        self._clock = clock
        self._run = run
        self._sparse_bytes = sparse_bytes
        self._backfill = backfill
        self._archive = ArchiveHold(self._ask, registry, reader, clock)
        self._alone = trio.Lock()
        # The content of each generation that does not grow any more, by generation id.
        self._held: dict[int, list[Holding]] = {}
        # The topics without live messages in the oldest generation, by id. Each has the ids of the
        # subscriptions for which this was found.
        self._empty: dict[int, frozenset[int]] = {}

    async def run(self) -> None:
        """Delete old generations forever."""
        outage = Outage("log.drop_waiting", "cannot delete old log generations; retrying later")
        while True:
            await trio.sleep(ROUND_S)
            with outage, suppress(NotFound):  # a topic was deleted meanwhile
                await self.round()

    async def round(self) -> None:
        """Delete the oldest generations that nothing needs any more.

        First finish interrupted deletions. Last, forget the moves and lapses of deleted messages.
        Concurrent calls wait for each other.
        """
        if self._backfill.is_running:
            return
        async with self._alone:
            for generation in self._log.going:
                await self._go(generation)
            while len(self._log.generations) > 1 and await self._forget(self._log.generations[0]):
                pass
            await self._forget_details()

    async def _forget(self, oldest: Generation) -> bool:
        """Delete the oldest generation if nothing needs it; return whether it was deleted."""
        if self._pipeline.writes_to(oldest):
            return False
        held = await self._holdings(oldest)
        if not await self._is_permitted(held):
            return False
        if self._pinned(held) or not await self._emptied(oldest, held):
            return False
        to_archive = self._archive.concerned(held)
        if await self._archive.waits(oldest, held, self._empty):
            return False
        if await self._named_by_journal(oldest):
            await self._checkpointer.checkpoint()
            if await self._named_by_journal(oldest):
                return False
        if self._pinned(held) or not self._still_empty(held):
            return False
        if not self._archive.concerned(held) <= to_archive:
            return False
        for one in held:
            if (topic := self._registry.active.get(one.topic_id)) is not None:
                topic.replace_keys.purge(self._clock.now_ms())
        self._log.retire(oldest)
        self._held.pop(oldest.id, None)
        self._empty.clear()
        await self._go(oldest)
        return True

    async def _forget_details(self) -> None:
        """Forget moves and lapses of messages before the log's beginning."""
        for topic in list(self._registry.active.values()):
            moved = not topic.amendments.moves.empty
            if moved or _lapsing(topic):
                begin = await self._reader.first_offset(topic.id, topic.next_offset)
                if moved:
                    await self._forget_moves(topic, begin)
                if _lapsing(topic):
                    self._forget_lapses(topic, begin)

    def _forget_lapses(self, topic: Topic, begin: int) -> None:
        """Count all messages that no log row has any more as lapsed, if a subscription has lapses.

        The set of lapsed messages otherwise keeps a bit for each of them.

        Args:
          begin: the log's first offset.
        """
        gone = topic.amendments.forgotten(0, begin)
        for one in _lapsing(topic):
            if one.forget_lapses(gone):
                self._checkpointer.touch(topic.id)

    async def _forget_moves(self, topic: Topic, begin: int) -> None:
        """Forget the moves of finished messages before ``begin``, the log's first offset."""
        over = topic.retention.moves_over(begin, self._clock.now_ms())
        released = await self._archive.released(topic, over)
        # Ask again: meanwhile a new or sought subscription may want some of the messages.
        over = topic.retention.moves_over(begin, self._clock.now_ms())
        over = over[np.isin(over, released, assume_unique=True)]
        if len(over):
            topic.amendments.moves.discard(over)
            self._checkpointer.touch(topic.id)

    # -- contents of a generation ----------------------------------------------

    async def _holdings(self, generation: Generation) -> list[Holding]:
        """Return the content of each existing topic in a generation."""
        held = self._held.get(generation.id)
        if held is None:
            held = await self._ask(forgetting.holdings, generation)
            if generation.id != self._log.current.id:
                self._held[generation.id] = held
        return [one for one in held if self._registry.exists(one.topic_id)]

    async def _named_by_journal(self, generation: Generation) -> bool:
        return await self._ask(forgetting.named_by_journal, self._lease.bundle_id, generation)

    # -- conditions ------------------------------------------------------------

    async def _is_permitted(self, held: list[Holding]) -> bool:
        """Return whether the policy of every namespace permits deleting the oldest generation.

        Args:
          held: the content of the oldest generation, an item for each topic.
        """
        now_ms = self._clock.now_ms()
        # ``retention_bytes`` of namespaces with messages that are not old enough, by namespace id.
        limited: dict[int, int] = {}
        for one in held:
            namespace = self._registry.namespace_of(one.topic_id)
            if one.accepted_at_ms + namespace.policy.retention_ms <= now_ms:
                continue
            if not namespace.policy.retention_bytes:
                return False
            limited[namespace.id] = namespace.policy.retention_bytes
        if not limited:
            return True
        newer: Counter[int] = Counter()
        for generation in self._log.generations[1:]:
            for one in await self._holdings(generation):
                newer[self._registry.namespace_of(one.topic_id).id] += one.size_bytes
        return all(newer[id] >= most for id, most in limited.items())

    def _pinned(self, held: list[Holding]) -> bool:
        return any(self._pins(one) for one in held if self._registry.exists(one.topic_id))

    def _subscription_ids(self, topic_id: int) -> frozenset[int]:
        return frozenset(record.id for record in self._registry.subscriptions_of(topic_id))

    def _pins(self, held: Holding) -> bool:
        """Return whether a subscription must still read messages of a topic from the log.

        Args:
          held: the topic's content of the oldest generation.
        """
        id, registry = held.topic_id, self._registry
        # A shared subscription reads the log only during a fill; its topic is then active.
        shared = all(record.kind == "shared" for record in registry.subscriptions_of(id))
        if shared and id not in registry.active:
            return False
        return registry.activate(id).retention.pins(held.first_offset, held.end_offset)

    def _still_empty(self, held: list[Holding]) -> bool:
        return all(
            self._empty.get(one.topic_id) == self._subscription_ids(one.topic_id)
            for one in held
            if self._registry.exists(one.topic_id)
        )

    # -- relocation --------------------------------------------------------------

    async def _emptied(self, oldest: Generation, held: list[Holding]) -> bool:
        """Relocate the live messages of the oldest generation; return whether none is left in it.

        Args:
          oldest: the oldest generation.
          held: its content, an item for each topic.
        """
        connection = await self._run(self._engine.connect)
        try:
            for one in held:
                if not self._registry.exists(one.topic_id):
                    continue
                ids = self._subscription_ids(one.topic_id)
                if self._empty.get(one.topic_id) == ids:
                    continue
                await trio.lowlevel.checkpoint()
                if not self._registry.exists(one.topic_id):
                    continue
                topic = self._registry.activate(one.topic_id)
                if not await self._emptied_of(connection, oldest, one, topic):
                    return False
                self._empty[topic.id] = ids
        finally:
            connection.close()
        return True

    async def _emptied_of(
        self, connection: Connection, oldest: Generation, held: Holding, topic: Topic
    ) -> bool:
        """Relocate one topic's live messages of a generation; return whether none is left in it.

        Returns False as soon as the log is not sparse, or a message cannot be relocated now.

        Args:
          connection: reads the log rows.
          held: the topic's content of the generation.
        """
        whole = held.first_offset, held.end_offset, held.max_due_ms
        if not held.restated and not topic.retention.may_keep(*whole, self._clock.now_ms()):
            return True
        if not topic.restatements.known:
            topic.restatements.know(await self._reader.lowest_base(topic.id))
        relocation = Relocation(topic, self._pipeline, self._clock)
        low = _LOWEST if held.restated else held.first_offset
        while heads := await self._run(
            self._log.page, connection, oldest, topic.id, low, held.end_offset
        ):
            low = heads[-1].key.base_offset + 1
            steps = self._log.fetch(connection, self._worth_reading(topic, heads), _STEP_BYTES)
            while (rows := await self._run(next, steps, None)) is not None:
                live = [relocation.gather(row) for row in rows]
                if any(live) and not self._is_sparse():
                    return False
                if relocation.is_due and not await relocation.state():
                    return False
                await trio.sleep(_BREATH_S)
        return await relocation.state()

    def _is_sparse(self) -> bool:
        """Return whether the log is several times as large as the index.

        The index has little else than live messages, so most messages in the log are then finished.
        """
        size_bytes = sum(one.size_bytes for one in self._log.generations)
        return size_bytes >= _SPARSE * self._index_bytes

    @property
    def _index_bytes(self) -> int:
        return self._index.memory_bytes + self._index.disk_bytes

    def wants_next(self, now_ms: int) -> bool:
        """Return whether the current generation should end early, because it is mostly finished."""
        current = self._log.current
        longest_ms = max((one.policy.retention_ms for one in self._registry.namespaces), default=0)
        return (
            current.size_bytes >= self._sparse_bytes
            and now_ms - current.created_at_ms >= max(longest_ms, _NEXT_MS)
            and current.size_bytes >= _SPARSE * self._index_bytes
        )

    def _worth_reading(self, topic: Topic, heads: list[RowHead]) -> list[RowKey]:
        now_ms = self._clock.now_ms()
        return [
            key
            for key, _, max_due_ms, _ in heads
            if key.base_offset < 0
            or topic.retention.may_keep(key.base_offset, key.end_offset, max_due_ms, now_ms)
        ]

    # -- deletion --------------------------------------------------------------------

    async def _go(self, generation: Generation) -> None:
        """Mark a retired generation, drop or empty its tables, and delete its row and mark.

        After a crash at any step, all of it can be repeated.
        """
        await self._pipeline.transact(lambda connection: forgetting.mark(connection, generation))
        failpoint("generation_drop")
        await self._reader.settled()
        if not await self._ask(forgetting.drop_at_once, self._engine, generation):
            await step_by_step(
                self._pipeline.transact,
                lambda connection: forgetting.empty_step(self._engine, connection, generation),
            )
            await self._ask(forgetting.drop, generation)
        await self._pipeline.transact(lambda connection: forgetting.strike(connection, generation))
        self._log.forget(generation)
        _log.info(
            "log.generation_dropped",
            "generation %d of the log is forgotten",
            generation.id,
            generation=generation.id,
        )

    async def _ask(self, question: Callable[..., T], *arguments: object) -> T:
        """Call ``question`` with a new connection to the database, followed by ``arguments``."""
        return await self._run(self._asked_now, question, *arguments)

    def _asked_now(self, question: Callable[..., T], *arguments: object) -> T:
        with closing(self._engine.connect()) as connection:
            return question(connection, *arguments)


def _lapsing(topic: Topic) -> list[Subscription]:
    return [one for one in topic.subscriptions() if one.lapsed]
