"""Keeps the index's segments few and free of what is done.

After checkpoints it asks the index which segments are worth merging, tells the merge
which offsets are dead, and waits for it beside everything else. Dead is what every shared
subscription of a topic has durably acknowledged, once it is due: of what is not, a
subscription may still be made, or sought, that wants it. What is durably cancelled, and the
old keys of what was moved, nobody comes to want, so they go at once, but for who holds them.
What is not named is kept, so a topic that is not alive loses nothing.

While memory fills so fast that checkpoints are written because of it, merges wait, within
bounds: most of all when much comes in at once (a bulk write, say), for then they would take
from everybody what is scarce. What has come is merged when less comes.

A merge is given up when the broker stops: the inputs are as good as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from escapement.broker.crash import one_error
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.dormant import Dormant
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.checkpointer import FAR_MS
from escapement.clock import Clock
from escapement.errors import IndexDamaged, StorageError
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.index import DelayedIndex
from escapement.storage.index.compaction import Compaction

_log = logging.getLogger(__name__)

# How often to look for something to merge: about as often as there is a new segment. One
# merge a round, so that a wrong guess of what is live costs one rewrite and not a spin.
ROUND_S: Final = 5.0
# Offsets looked at in one step on the event loop: about a millisecond.
_STEP_OFFSETS: Final = 1 << 18


class Compactor:
    """See the module's docstring."""

    def __init__(
        self, index: DelayedIndex, registry: Registry, dormant: Dormant, clock: Clock, run: Run
    ) -> None:
        self._index = index
        self._registry = registry
        self._dormant = dormant
        self._clock = clock
        self._run = run
        self._alone = trio.Lock()

    async def run(self) -> None:
        """Merge whenever it is worth it, for ever.

        Raises:
          IndexDamaged: an input turned out damaged.
        """
        full = 0
        while True:
            await trio.sleep(ROUND_S)
            before, full = full, self._index.full_checkpoints
            few = self._index.segment_count < self._index.limits.filling_segments
            if full > before and few:
                continue
            try:
                await self.merge_some()
            except IndexDamaged:
                raise
            except StorageError as error:
                _log.warning("segments are not merged now: %s", error)

    async def make_room(self) -> None:
        """Wait until the index has room for another segment; merge some if need be.

        Raises:
          StorageError: the disk refuses; or an input turned out damaged.
        """
        while self._index.segment_count >= self._index.limits.most_segments:
            await self.merge_some()

    async def merge_some(self) -> None:
        """Merge what is worth it now, after whatever is being merged. Raises ``StorageError``."""
        async with self._alone:
            for _ in self._dormant.count():
                await trio.lowlevel.checkpoint()
            names = self._index.choose_compaction(self._live_count)
            if names:
                await self.merge(names)

    def _live_count(
        self, topic_id: int, first_offset: int, last_offset: int, due_from: Callable[[int], int]
    ) -> int:
        """About how many messages of a range are still wanted: never more than it holds.

        Args:
          due_from: how many of a segment are due from a time on, at most.
        """
        most = last_offset - first_offset + 1
        topic = self._registry.active.get(topic_id)
        if topic is None and not self._registry.exists(topic_id):
            return most
        if topic is not None:
            uncancelled = topic.next_offset - len(topic.amendments.cancelled)
            left = [(one.record, topic.unacknowledged(one)) for one in topic.shared.values()]
        else:
            end_offset = self._registry.record(topic_id).next_offset
            uncancelled = end_offset - self._dormant.cancelled(topic_id)
            left = [
                (record, end_offset - self._dormant.done(record.id))
                for record in self._registry.subscriptions_of(topic_id)
                if record.kind == "shared"
            ]
        wanted = uncancelled if not left else 0
        for record, unacknowledged in left:
            start = record.start_offset
            since = last_offset - max(first_offset, start) + 1
            # Of what was published before it began it gets what is due later.
            covered = max(since, 0) + (due_from(record.start_due_ms) if start else 0)
            wanted = max(wanted, min(unacknowledged, covered))
        return min(most, wanted)

    def _worth_asking(self, topic_id: int) -> Topic | None:
        """The topic, unless it does not exist or all of it is wanted."""
        registry = self._registry
        if topic_id in registry.active or not registry.exists(topic_id):
            return registry.active.get(topic_id)
        records = registry.subscriptions_of(topic_id)
        if not self._dormant.may_have_dead(registry.record(topic_id), records):
            return None
        return registry.activate(topic_id)

    async def merge(self, names: list[str]) -> None:
        """Merge the segments named into one, without what is dead. Raises ``StorageError``."""
        now_ms = self._clock.now_ms()
        compaction = self._index.begin_compaction(names, now_ms, now_ms + FAR_MS)
        try:
            for topic_id, first, last in compaction.ranges():
                for low in range(first, last + 1, _STEP_OFFSETS):
                    topic = self._worth_asking(topic_id)
                    if topic is not None:
                        high = min(low + _STEP_OFFSETS, last + 1)
                        claims = topic.claims
                        named = (*claims.dead(low, high), *claims.outdated(low, high))
                        await self._run(_leave_out, compaction, topic_id, *named)
            with one_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_give_up_when_cancelled, compaction)
                    await self._run(compaction.run)
                    nursery.cancel_scope.cancel()
            await self._run(compaction.finish)
        except BaseException:
            self._index.abandon_compaction(compaction)
            raise
        self._index.install_compaction(compaction)
        await self._run(compaction.let_go)
        _log.info("merged %d segments", len(names))


def _leave_out(
    compaction: Compaction,
    topic_id: int,
    dead: Int64s,
    early: Int64s,
    before_ms: Int64s,
    outdated: Int64s,
    staying_ms: Int64s,
) -> None:
    """Name what goes of a topic. Blocking."""
    compaction.exclude(topic_id, dead)
    compaction.exclude_early(topic_id, early, before_ms)
    compaction.outdate(topic_id, outdated, staying_ms)


async def _give_up_when_cancelled(compaction: Compaction) -> None:
    """End the child process of a merge whose broker stops: its thread waits for it."""
    try:
        await trio.sleep_forever()
    finally:
        if not compaction.merged:
            compaction.discard()
