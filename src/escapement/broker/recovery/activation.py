"""The creation of the runtimes of topics and subscriptions from their stored state.

A *runtime* is the objects in memory that serve a topic or a subscription. A topic with a runtime is
active. It becomes active at its first use, or at recovery if the journal mentions it. Until then it
is passive: its state of the last checkpoint is kept as bytes (broker/topic/passive_topics.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from escapement.broker.limits import BrokerLimits
from escapement.broker.log.backfill import Backfill
from escapement.broker.metering.totals import Totals
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Environment, Subscription
from escapement.broker.topic.dedup_keys import DedupKeys
from escapement.broker.topic.key_store import KeyBudget
from escapement.broker.topic.passive_topics import PassiveTopics, Remains
from escapement.broker.topic.topic import Topic
from escapement.broker.topic.window_budget import WindowBudget
from escapement.broker.upkeep.filler import Filler
from escapement.clock import Clock
from escapement.names import TopicName
from escapement.storage.catalog.catalog import Namespace, SubscriptionRecord, TopicRecord
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.index import KEY_MIN, DelayedIndex, Key


class Activation:
    """The factory of runtimes. It also has a map of all subscriptions that have a runtime.

    Args:
      passive_topics: the stored state of passive topics. It is removed when a topic becomes active.
      end_offsets: by topic id, the end of the log of topics that have grown since the last
        checkpoint.
      doubtful_until_ms: the time up to which an earlier broker may have delivered messages without
        recording it.
      doubtful_below_id: it may have delivered them to subscriptions with lower ids.
      on_change: called with a topic that got a new or another subscription.
      on_dead: called with a subscription that has new dead messages.
      totals: the counters of the whole broker.
      backfill: whether the index lacks messages of the log that are being added.
    """

    def __init__(
        self,
        pipeline: CommitPipeline,
        index: DelayedIndex,
        filler: Filler,
        passive_topics: PassiveTopics,
        clock: Clock,
        limits: BrokerLimits,
        rng: np.random.Generator,
        *,
        end_offsets: Mapping[int, int],
        doubtful_until_ms: int,
        doubtful_below_id: int,
        on_change: Callable[[Topic], None],
        on_dead: Callable[[Subscription], None],
        totals: Totals,
        backfill: Backfill,
    ) -> None:
        self._pipeline = pipeline
        self._index = index
        self._filler = filler
        self._clock = clock
        self._limits = limits
        self._budget = WindowBudget(limits.window_messages)
        self._key_budget = KeyBudget(limits.dedup_keys)
        self._replace_budget = KeyBudget(limits.replace_keys)
        self._rng = rng
        self._passive = passive_topics
        self._end_offsets = end_offsets
        self.doubtful_until_ms = doubtful_until_ms
        self._doubtful_below_id = doubtful_below_id
        self._on_change = on_change
        self._on_dead = on_dead
        self._totals = totals
        self._backfill = backfill
        self.recovered_at_ms = clock.now_ms()
        # Whether the journal is being replayed. It may still add attempts to new subscriptions, so
        # they are not begun.
        self.replaying = True
        self.subscriptions: dict[int, Subscription] = {}  # all that have a runtime, by id

    def topic(
        self,
        record: TopicRecord,
        name: TopicName,
        namespace: Namespace,
        subscriptions: Iterable[SubscriptionRecord],
    ) -> Topic:
        """Create the runtime of a topic and of all its subscriptions."""
        end = max(record.next_offset, self._end_offsets.get(record.id, 0))
        topic = Topic(
            record.id,
            name,
            namespace,
            record.policy,
            end,
            self._index,
            self._budget,
            DedupKeys(self._key_budget),
            self._replace_budget,
            self._backfill,
        )
        self._passive.move_topic(topic)
        self._pipeline.open_topic(record.id, end)
        for subscription in subscriptions:
            self._subscription(topic, subscription, new=False)
        return topic

    def passivated(self, remains: Remains) -> None:
        """Keep the state of a topic that became passive, and forget its subscriptions' runtimes."""
        self._passive.keep(remains)
        for record in remains.records:
            del self.subscriptions[record.id]

    def new_subscription(self, topic: Topic, record: SubscriptionRecord) -> None:
        """Create the runtime of a subscription that was just created."""
        self._subscription(topic, record, new=True)
        self._on_change(topic)

    def replace_subscription(
        self, topic: Topic, old: Subscription, record: SubscriptionRecord
    ) -> Subscription:
        """Replace a subscription's runtime after a seek, and return the new one.

        The new runtime takes over the consumers of ``old`` and nothing else.
        """
        del self.subscriptions[old.record.id]
        topic.groups.follow_seek(old.record.id, record.id)
        new = self._subscription(topic, record, new=True)
        new.take_over(old.give_up())
        self._on_change(topic)
        return new

    def _subscription(self, topic: Topic, record: SubscriptionRecord, *, new: bool) -> Subscription:
        now_ms = self._clock.now_ms()
        environment = Environment(
            self._limits,
            self._pipeline.submit,
            self._rng,
            topic.amendments,
            self._on_dead,
            self._totals,
            # Subscriptions with higher ids did not exist when the earlier broker delivered.
            self.doubtful_until_ms if record.id < self._doubtful_below_id else 0,
            self._backfill,
        )
        if record.kind == "shared":
            mark = _first_mark(topic, record, new=new)
            shared = SharedSubscription(record, environment, now_ms, mark)
            self._remember(shared, now_ms)
            topic.add_shared(shared, now_ms)
            if record.is_filling:
                self._filler.add(topic, shared)
            return shared
        ordered = OrderedSubscription(record, environment, now_ms)
        self._remember(ordered, now_ms)
        topic.add_ordered(ordered)
        return ordered

    def _remember(self, subscription: Subscription, now_ms: int) -> None:
        self._passive.move_subscription(subscription)
        if not self.replaying:
            subscription.begin(now_ms)
        self.subscriptions[subscription.record.id] = subscription


def _first_mark(topic: Topic, record: SubscriptionRecord, *, new: bool) -> Key:
    """Return the position in the delivery order from which a shared subscription reads the index.

    A new subscription also reads the messages that arrived while it was made durable.
    """
    if record.is_filling:
        # Messages that were due before the creation are read once the filler has marked those that
        # the log has forgotten.
        begin_ms = record.created_at_ms + 1
    elif not new:
        return KEY_MIN
    else:
        begin_ms = record.start_due_ms
    return Key(min(begin_ms, topic.retention.arrived_since_ms), 0) if new else Key(begin_ms, 0)
