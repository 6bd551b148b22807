"""Passivates topics that nobody uses, so that memory follows the topics that are in use.

Beyond ``active_topics`` topics with a runtime, those that had theirs first and are idle lose it
(broker/topic/dormant.py). Nothing needs to happen while a topic is passive: it has no consumer,
so what falls due waits in the index, as it does behind a consumer that is away. Whoever asks for
the topic brings it to life (``Registry.activate``), and it is then as after a start.

A topic is passivated in one synchronous step, and only if

1. nothing of it has changed since the last checkpoint, and nothing of it waits for a commit: so
   the database has all that the runtime had;
2. it is idle (``is_idle``): so its rows say all there is to know;
3. nobody refers to its runtime: who looked a topic up and waits for the database goes on with
   that very object. A weak reference tells.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

import trio

from escapement.broker.recovery.revival import Revival
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.dormant import is_idle, remains_of
from escapement.broker.upkeep.checkpointer import Checkpointer
from escapement.broker.upkeep.progress import Progress
from escapement.storage.commit.commit import CommitPipeline

LOOK_S: Final = 1.0
# Topics looked at in one synchronous step: a few milliseconds.
_STEP_TOPICS: Final = 64
# Where most topics are in use, all of them are looked at again when so many more are active.
_GROWTH: Final = 1.25


class Passivator:
    """See the module's docstring.

    Args:
      active_topics: how many topics may be active before some are passivated.
      unschedule: called with the id of a topic that wants to be woken no more.
    """

    def __init__(
        self,
        registry: Registry,
        revival: Revival,
        pipeline: CommitPipeline,
        checkpointer: Checkpointer,
        progress: Progress,
        active_topics: int,
        unschedule: Callable[[int], None],
    ) -> None:
        self._registry = registry
        self._revival = revival
        self._pipeline = pipeline
        self._checkpointer = checkpointer
        self._progress = progress
        self._active_topics = active_topics
        self._unschedule = unschedule

    async def run(self) -> None:
        """Look at each second whether too many topics are active, for ever."""
        most = self._active_topics
        while True:
            await trio.sleep(LOOK_S)
            if len(self._registry.active) > most:
                await self.round(self._active_topics // 2)
                most = max(self._active_topics, int(len(self._registry.active) * _GROWTH))

    async def round(self, stay: int = 0) -> None:
        """Passivate what may be, the longest active first, until ``stay`` topics are active."""
        if self._progress.touched:
            await self._checkpointer.checkpoint()
        active = self._registry.active
        ids = list(active)
        for at in range(0, len(ids), _STEP_TOPICS):
            busy = self._pipeline.topics() | self._progress.touched
            for topic_id in ids[at : at + _STEP_TOPICS]:
                if len(active) <= stay:
                    return
                if topic_id in active and topic_id not in busy:
                    self._passivate(topic_id)
            await trio.lowlevel.checkpoint()

    def _passivate(self, topic_id: int) -> None:
        """Take away a topic's runtime, if it may go."""
        topic = self._registry.active[topic_id]
        if not is_idle(topic):
            return
        remains, release = remains_of(topic), topic.releasing()
        runtime = weakref.ref(topic)
        del topic, self._registry.active[topic_id]
        if (used := runtime()) is not None:
            self._registry.active[topic_id] = used
            return
        release()
        self._registry.passivated(remains)
        self._revival.passivated(remains)
        self._pipeline.shut_topic(topic_id, remains.next_offset)
        self._unschedule(topic_id)
