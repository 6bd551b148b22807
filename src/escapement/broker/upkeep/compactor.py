"""Merges index segments, to keep them few and free of obsolete messages.

Every few seconds, a task asks the index which segments are worth merging, names the obsolete
messages, and waits for the merge. A message is *obsolete* if it is due and every shared
subscription of its topic has durably acknowledged it. Before it is due, a subscription that wants
it may still be created, or sought. Durably cancelled messages, and the old keys of rescheduled
ones, are obsolete even before they are due, except those that a subscription holds. A merge keeps
all messages that are not named, so a topic that is not asked loses nothing.

While memory fills so fast that it triggers checkpoints (during a bulk write, for example), merges
wait, because they would take scarce resources from everything else. They wait until the load drops,
or until there are ``filling_segments`` segments.

When the broker stops, it abandons the merge; the input segments stay valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from escapement.broker.crash import one_error
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.passive_topics import PassiveTopics
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.checkpointer import FAR_MS
from escapement.broker.upkeep.progress import Progress
from escapement.clock import Clock
from escapement.errors import IndexDamaged, StorageError
from escapement.event_log import EventLog
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.index import DelayedIndex
from escapement.storage.index.merging.compaction import Compaction

_log = EventLog(__name__)

# How often to look for segments to merge: about as often as checkpoints write them. The choice of
# segments relies on an estimate of how many messages a merge would keep. If it is too low, the
# merged segment is chosen again. That costs one merge in each round, and not a busy loop.
ROUND_S: Final = 5.0
# Offsets examined in one step on the event loop, which takes about a millisecond.
_STEP_OFFSETS: Final = 1 << 18


class Compactor:
    """The task that merges index segments."""

    def __init__(
        self,
        index: DelayedIndex,
        registry: Registry,
        passive_topics: PassiveTopics,
        progress: Progress,
        clock: Clock,
        run: Run,
    ) -> None:
        self._index = index
        self._registry = registry
        self._passive = passive_topics
        self._progress = progress
        self._clock = clock
        self._run = run
        self._alone = trio.Lock()

    async def run(self) -> None:
        """Merge segments whenever it is worthwhile, forever.

        Raises:
          IndexDamaged: if an input segment is damaged.
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
                # A merge also fails because it is given up when this task is cancelled.
                await trio.lowlevel.checkpoint_if_cancelled()
                _log.warning(
                    "index.merge_failed", "cannot merge index segments; retrying later: %s", error
                )

    async def make_room(self) -> None:
        """Wait until the index has room for another segment; merge some if necessary.

        Raises:
          StorageError: if the disk fails, or if an input segment is damaged.
        """
        while self._index.segment_count >= self._index.limits.most_segments:
            await self.merge_some()

    async def merge_some(self) -> None:
        """Wait for the current merge, then merge segments once if it is worthwhile.

        Raises:
          StorageError: if the disk fails, or if an input segment is damaged.
        """
        async with self._alone:
            for _ in self._passive.count():
                await trio.lowlevel.checkpoint()
            names = self._index.choose_compaction(self._live_count)
            if names:
                await self.merge(names)

    def _live_count(
        self, topic_id: int, first_offset: int, last_offset: int, due_from: Callable[[int], int]
    ) -> int:
        """Estimate how many of a topic's messages in a segment a merge would keep.

        Args:
          first_offset: the lowest offset of the topic in the segment.
          last_offset: the highest one.
          due_from: returns an upper bound on the segment's messages due at or after a time.
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
            uncancelled = end_offset - self._passive.cancelled(topic_id)
            left = [
                (record, end_offset - self._passive.done(record.id))
                for record in self._registry.subscriptions_of(topic_id)
                if record.kind == "shared"
            ]
        wanted = uncancelled if not left else 0
        for record, unacknowledged in left:
            start = record.start_offset
            since = last_offset - max(first_offset, start) + 1
            # A subscription also gets messages published before its beginning and due after it.
            covered = max(since, 0) + (due_from(record.start_due_ms) if start else 0)
            wanted = max(wanted, min(unacknowledged, covered))
        return min(most, wanted)

    def _worth_asking(self, topic_id: int) -> Topic | None:
        """Return a topic that may have obsolete messages, or None.

        Makes a passive topic active. None means that it was deleted or has no obsolete messages.
        """
        registry = self._registry
        if topic_id in registry.active or not registry.exists(topic_id):
            return registry.active.get(topic_id)
        records = registry.subscriptions_of(topic_id)
        if not self._passive.may_have_dead(registry.record(topic_id), records):
            return None
        return registry.activate(topic_id)

    async def merge(self, names: list[str]) -> None:
        """Merge the named segments into one, without obsolete messages.

        Raises:
          StorageError: if the disk fails, or if an input segment is damaged.
        """
        now_ms = self._clock.now_ms()
        compaction = self._index.begin_compaction(names, now_ms, now_ms + FAR_MS)
        try:
            for topic_id, first, last in compaction.ranges():
                for low in range(first, last + 1, _STEP_OFFSETS):
                    topic = self._worth_asking(topic_id)
                    if topic is not None:
                        high = min(low + _STEP_OFFSETS, last + 1)
                        retention = topic.retention
                        named = (*retention.dead(low, high), *retention.outdated(low, high))
                        await self._run(_leave_out, compaction, topic_id, *named)
            relied_on = dict(self._progress.finished)
            with one_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_give_up_when_cancelled, compaction)
                    await self._run(compaction.run)
                    nursery.cancel_scope.cancel()
            await self._run(compaction.finish, relied_on)
        except BaseException:
            self._index.abandon_compaction(compaction)
            raise
        self._index.install_compaction(compaction)
        await self._run(compaction.let_go)
        _log.info("index.merged", "merged %d segments", len(names), segments=len(names))


def _leave_out(
    compaction: Compaction,
    topic_id: int,
    dead: Int64s,
    early: Int64s,
    before_ms: Int64s,
    outdated: Int64s,
    staying_ms: Int64s,
) -> None:
    """Name messages of a topic that a merge leaves out. Blocking.

    Args:
      dead: offsets of messages that are left out if they are due.
      early: offsets of messages that are left out if they are due before ``before_ms``.
      outdated: offsets of changed messages, of which only the key due at ``staying_ms`` is kept.
    """
    compaction.exclude(topic_id, dead)
    compaction.exclude_early(topic_id, early, before_ms)
    compaction.outdate(topic_id, outdated, staying_ms)


async def _give_up_when_cancelled(compaction: Compaction) -> None:
    """Wait until cancelled, then end the child process of a merge that is not done.

    The broker cancels this when it stops. It must wait for the thread of the merge, which waits for
    the child process.
    """
    try:
        await trio.sleep_forever()
    finally:
        if not compaction.merged:
            compaction.discard()
