"""The passivator makes unused topics passive, so that memory follows the topics in use.

A topic is active if it has a *runtime*, its objects in memory. The passivator acts when more than
``active_topics`` topics are active. It then makes idle topics passive
(broker/topic/passive_topics.py), in the order in which they became active. A passive topic needs no
timer: it has no consumer, and its due messages wait in the index for the next consumer.
``Registry.activate`` makes the topic active again. The topic is then in the same state as after a
start of the broker.

A topic becomes passive in one synchronous step, and only under three conditions:

1. It has not changed since the last checkpoint, and none of its items waits for a commit. So the
   database has its whole durable state.
2. It is idle (``is_idle``). So its memory has nothing that cannot be read again.
3. No task refers to its runtime, as a weak reference shows. A task that looked the topic up and
   waits for the database must not continue with an object that the registry has dropped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

import trio

from escapement.broker.recovery.activation import Activation
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.passive_topics import is_idle, remains_of
from escapement.broker.upkeep.checkpointer import Checkpointer
from escapement.broker.upkeep.progress import Progress
from escapement.storage.commit.commit import CommitPipeline

# The pause before each round. Topics that become active at the same time have one round.
PAUSE_S: Final = 1.0
# How many topics are examined in one synchronous step, which takes a few milliseconds.
_STEP_TOPICS: Final = 64
# If a round leaves many topics active because they are in use, the next round begins when their
# number has grown by this factor.
_GROWTH: Final = 1.25


class Passivator:
    """The task that makes unused topics passive.

    Args:
      active_topics: how many topics may be active before some become passive.
      unschedule: called with the id of a topic that needs no more wake-ups.
    """

    def __init__(
        self,
        registry: Registry,
        activation: Activation,
        pipeline: CommitPipeline,
        checkpointer: Checkpointer,
        progress: Progress,
        active_topics: int,
        unschedule: Callable[[int], None],
    ) -> None:
        self._registry = registry
        self._activation = activation
        self._pipeline = pipeline
        self._checkpointer = checkpointer
        self._progress = progress
        self._active_topics = active_topics
        self._most = active_topics  # the next round begins when more topics are active
        self._too_many = trio.Event()
        self._unschedule = unschedule

    def grown(self) -> None:
        """Look at the number of active topics, because another one has become active."""
        if len(self._registry.active) > self._most:
            self._too_many.set()

    async def run(self) -> None:
        """Make topics passive when too many are active, once a second at most; never returns."""
        while True:
            await self._too_many.wait()
            await trio.sleep(PAUSE_S)
            self._too_many = trio.Event()
            if len(self._registry.active) > self._most:
                await self.round(self._active_topics // 2)
                self._most = max(self._active_topics, int(len(self._registry.active) * _GROWTH))

    async def round(self, stay: int = 0) -> None:
        """Make idle topics passive, the longest active first, until ``stay`` topics are active.

        First writes a checkpoint if topics have changed since the last one.
        """
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
        """Make a topic passive if it is idle and no task refers to its runtime.

        The caller has checked that the database has its whole durable state.
        """
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
        self._activation.passivated(remains)
        self._pipeline.shut_topic(topic_id, remains.next_offset)
        self._unschedule(topic_id)
