"""Keeps the index's segments few and free of what is done.

After checkpoints it asks the index which segments are worth merging, tells the merge
which offsets are dead, and waits for it beside everything else. Dead is what every shared
subscription of a topic has durably acknowledged, or does not get because it is durably
cancelled, once it is due: of what is not, a subscription may still be made, or sought, that
wants it. What is not named is kept, so a topic that is not alive, or has no shared
subscription, loses nothing.

A merge is given up when the broker stops: the inputs are as good as before.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from escapement.broker.crash import one_error
from escapement.broker.registry import Registry
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

    def __init__(self, index: DelayedIndex, registry: Registry, clock: Clock, run: Run) -> None:
        self._index = index
        self._registry = registry
        self._clock = clock
        self._run = run

    async def run(self) -> None:
        """Merge whenever it is worth it, for ever.

        Raises:
          IndexDamaged: an input turned out damaged.
        """
        while True:
            await trio.sleep(ROUND_S)
            try:
                names = self._index.choose_compaction(self._live_count)
                if names:
                    await self._merge(names)
            except IndexDamaged:
                raise
            except StorageError as error:
                _log.warning("segments are not merged now: %s", error)

    def _live_count(self, topic_id: int, first_offset: int, last_offset: int) -> int:
        """About how many messages of a range are still wanted: never more than it holds."""
        most = last_offset - first_offset + 1
        topic = self._registry.active.get(topic_id)
        if topic is None or not topic.shared:
            return most
        open_counts = [topic.unacknowledged(one) for one in topic.shared.values()]
        return min(most, max(open_counts))

    async def _merge(self, names: list[str]) -> None:
        compaction = self._index.begin_compaction(names, self._clock.now_ms())
        try:
            for topic_id, first, last in compaction.ranges():
                for low in range(first, last + 1, _STEP_OFFSETS):
                    dead = self._dead(topic_id, low, min(low + _STEP_OFFSETS, last + 1))
                    if dead is not None:
                        await self._run(compaction.exclude, topic_id, dead)
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
        _log.info("merged %d segments", len(names))

    def _dead(self, topic_id: int, low: int, high: int) -> Int64s | None:
        """The offsets of ``[low, high)`` that nobody wants any more; None for none."""
        topic = self._registry.active.get(topic_id)
        dead = None if topic is None else topic.dead(low, high)
        return dead if dead is not None and len(dead) else None


async def _give_up_when_cancelled(compaction: Compaction) -> None:
    """End the child process of a merge whose broker stops: its thread waits for it."""
    try:
        await trio.sleep_forever()
    finally:
        if not compaction.merged:
            compaction.discard()
