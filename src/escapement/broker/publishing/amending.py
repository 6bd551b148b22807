"""Cancelling messages that are published and not yet handed out.

A call is one synchronous step that decides, for each message, whether it still can be
done, and does it; the answer follows when that is durable. So the answer is linear: what
is answered as cancelled is handed to nobody any more, what is answered as delivered had
been handed to everybody before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from escapement.broker.delivery.pump import Pump
from escapement.broker.limits import BrokerLimits
from escapement.broker.publishing.outcome import Outcome, decide
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import NotFound, StorageReadOnly, StorageUnavailable
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.protocol.fate import Fate
from escapement.storage.commit import CommitPipeline
from escapement.storage.items import Acks
from escapement.storage.journalentry import cancellations_id
from escapement.storage.lane import State


class Amending:
    """See the module's docstring."""

    def __init__(
        self,
        registry: Registry,
        pipeline: CommitPipeline,
        pump: Pump,
        clock: Clock,
        limits: BrokerLimits,
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._pump = pump
        self._clock = clock
        self._limits = limits

    def cancel(self, topic_text: str, offsets: Int64s, done: Callable[[Outcome], None]) -> None:
        """Cancel messages for every subscription that has not been handed them.

        A message that was cancelled before is cancelled again, without harm. While the
        database is away the answer waits; the messages are handed to nobody meanwhile.

        Args:
          offsets: int64[n], any order, repeats allowed.
          done: told what became of each, in their order, once that is durable.

        Raises:
          NotFound: there is no such topic.
          StorageReadOnly, StorageUnavailable: it cannot be kept now; nothing happened.
        """
        topic = self._topic(topic_text)
        self._check_room(len(offsets))
        wanted, back = np.unique(offsets, return_inverse=True)
        outcome = decide(topic, wanted, topic.subscriptions())
        open_offsets = wanted[outcome.fates == Fate.DONE]
        fresh = topic.amendments.cancelled.new_of(open_offsets)
        tell = partial(done, outcome.take(back))
        if len(fresh):
            self._withdraw(topic, fresh)
            topic.amendments.cancelled.take(fresh)
        elif not topic.amendments.cancelled.undurable.intersects(open_offsets):
            tell()
            return
        self._pipeline.submit(Acks(topic.id, cancellations_id(topic.id), fresh, tell))

    def _withdraw(self, topic: Topic, offsets: Int64s) -> None:
        """Take messages out of every subscription's hands that has not handed them out."""
        now_ms = self._clock.now_ms()
        for subscription in topic.subscriptions():
            topic.withdraw_from(subscription, offsets, now_ms)
            if subscription.consumers:
                self._pump.wake_subscription(topic, subscription)

    def _topic(self, topic_text: str) -> Topic:
        topic = self._registry.topic(TopicName.parse(topic_text))
        if topic.deleting:
            raise NotFound(f"the topic {topic.name.full} was deleted")
        return topic

    def _check_room(self, count: int) -> None:
        if self._pipeline.state is State.READ_ONLY:
            raise StorageReadOnly("nothing can be made durable now; ask again later")
        if self._pipeline.waiting_acks + count > 2 * self._limits.unwritten_acks:
            raise StorageUnavailable("too much waits for the database; ask again later")
