"""Makes the runtimes of topics and subscriptions from what is stored of them.

A topic has its runtime made when somebody uses it, or at recovery if the journal speaks of it.
Until then what the last checkpoint says of it waits as bytes (broker/topic/dormant.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.budget import WindowBudget
from escapement.broker.topic.dedup import DedupKeys, KeyBudget
from escapement.broker.topic.dormant import Dormant, Remains
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.filler import Filler
from escapement.clock import Clock
from escapement.names import TopicName
from escapement.storage.catalog import Namespace, SubscriptionRecord, TopicRecord
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.index import KEY_MIN, DelayedIndex, Key


class Revival:
    """See the module's docstring.

    Args:
      dormant: what is stored of topics; taken out as they are used.
      end_offsets: where the log goes on, of topics that have grown since the checkpoint.
      doubtful_until_ms: of what was accepted by then, a broker before us may have delivered
        more than is recorded.
    """

    def __init__(
        self,
        pipeline: CommitPipeline,
        index: DelayedIndex,
        filler: Filler,
        dormant: Dormant,
        clock: Clock,
        limits: BrokerLimits,
        rng: np.random.Generator,
        *,
        end_offsets: Mapping[int, int],
        doubtful_until_ms: int,
        on_change: Callable[[Topic], None],
        on_dead: Callable[[Subscription], None],
    ) -> None:
        self._pipeline = pipeline
        self._index = index
        self._filler = filler
        self._clock = clock
        self._limits = limits
        self._budget = WindowBudget(limits.window_messages)
        self._key_budget = KeyBudget(limits.dedup_keys)
        self._rng = rng
        self._dormant = dormant
        self._end_offsets = end_offsets
        self.doubtful_until_ms = doubtful_until_ms
        self._on_change = on_change
        self._on_dead = on_dead
        self.recovered_at_ms = clock.now_ms()
        self.replaying = True  # the journal may still add to what is brought to life
        self.subscriptions: dict[int, Subscription] = {}  # every living one, by id

    def topic(
        self,
        record: TopicRecord,
        name: TopicName,
        namespace: Namespace,
        subscriptions: Iterable[SubscriptionRecord],
    ) -> Topic:
        """Make a topic and all of its subscriptions."""
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
        )
        self._dormant.move_topic(topic)
        self._pipeline.open_topic(record.id, end)
        for subscription in subscriptions:
            self._subscription(topic, subscription, new=False)
        return topic

    def passivated(self, remains: Remains) -> None:
        """A topic has no runtime any more."""
        self._dormant.keep(remains)
        for record in remains.records:
            del self.subscriptions[record.id]

    def new_subscription(self, topic: Topic, record: SubscriptionRecord) -> None:
        """Serve a subscription that was just created."""
        self._subscription(topic, record, new=True)
        self._on_change(topic)

    def replace_subscription(
        self, topic: Topic, old: Subscription, record: SubscriptionRecord
    ) -> Subscription:
        """Serve a new subscription in an old one's place; consumers go over, nothing else does."""
        del self.subscriptions[old.record.id]
        topic.groups.follow_seek(old.record.id, record.id)
        new = self._subscription(topic, record, new=True)
        new.take_over(old.give_up())
        self._on_change(topic)
        return new

    def _subscription(self, topic: Topic, record: SubscriptionRecord, *, new: bool) -> Subscription:
        now_ms = self._clock.now_ms()
        # Of a new subscription nothing was delivered yet.
        doubtful_until_ms = 0 if new else self.doubtful_until_ms
        subscription: SharedSubscription | OrderedSubscription
        if record.kind == "shared":
            subscription = SharedSubscription(
                record,
                self._limits,
                self._pipeline.submit,
                self._rng,
                now_ms,
                topic.amendments,
                _first_mark(topic, record, new=new),
                doubtful_until_ms,
                self._on_dead,
            )
        else:
            subscription = OrderedSubscription(
                record,
                self._limits,
                self._pipeline.submit,
                self._rng,
                now_ms,
                topic.amendments,
                doubtful_until_ms,
                self._on_dead,
            )
        self._remember(subscription, now_ms)
        self.subscriptions[record.id] = subscription
        if isinstance(subscription, SharedSubscription):
            topic.add_shared(subscription, now_ms)
            if record.is_filling:
                self._filler.add(topic, subscription)
        else:
            topic.add_ordered(subscription)
        return subscription

    def _remember(self, subscription: Subscription, now_ms: int) -> None:
        self._dormant.move_subscription(subscription)
        if not self.replaying:
            subscription.begin(now_ms)


def _first_mark(topic: Topic, record: SubscriptionRecord, *, new: bool) -> Key:
    """Where a subscription begins to read; a new one with what came while it was made durable."""
    if record.is_filling:
        # What was due before waits for the filler, which knows what of it is forgotten.
        begin_ms = record.created_at_ms + 1
    elif not new:
        return KEY_MIN
    else:
        begin_ms = record.start_due_ms
    return Key(min(begin_ms, topic.claims.arrived_since_ms), 0) if new else Key(begin_ms, 0)
