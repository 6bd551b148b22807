"""Brings topics and subscriptions to life from what is stored of them.

A topic is made when somebody first uses it, or at recovery if it has something to
deliver. Until then, what the last checkpoint says of its subscriptions (bitmaps,
attempts) waits here as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.ready import Rows
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.budget import WindowBudget
from escapement.broker.topic.dedup import DedupKeys, KeyBudget
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.filler import Filler
from escapement.clock import Clock
from escapement.names import TopicName
from escapement.storage.attempts import decode_attempts
from escapement.storage.catalog import Namespace, SubscriptionRecord, TopicRecord
from escapement.storage.checkpoint import MemberRow
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.dedupkeys import decode_keys
from escapement.storage.index import KEY_MIN, DelayedIndex, Key
from escapement.storage.journal.journalentry import cancellations_id, lapses_id
from escapement.storage.letters.eventgroup import Closing


class Revival:
    """See the module's docstring.

    Args:
      chunks: bitmap chunks by subscription id, or that of a topic's cancellations; taken out
        as they are used.
      moves: the times of moved messages by topic id, likewise.
      attempts: their parts by subscription id, likewise.
      keys: dedup keys in parts by topic id, likewise.
      members, closings: of groups by topic id, likewise.
      end_offsets: where the log goes on, of topics that have grown since the checkpoint.
      doubtful_until_ms: of what was accepted by then, a broker before us may have delivered
        more than is recorded.
    """

    def __init__(
        self,
        pipeline: CommitPipeline,
        index: DelayedIndex,
        filler: Filler,
        clock: Clock,
        limits: BrokerLimits,
        rng: np.random.Generator,
        *,
        chunks: dict[int, list[tuple[int, bytes]]],
        moves: dict[int, list[tuple[int, bytes]]],
        attempts: dict[int, list[tuple[int, bytes]]],
        keys: dict[int, list[tuple[int, bytes]]],
        members: dict[int, list[MemberRow]],
        closings: dict[int, list[Closing]],
        end_offsets: Mapping[int, int],
        doubtful_until_ms: int,
        on_change: Callable[[Topic], None],
        on_dead: Callable[[Topic, Subscription], None],
    ) -> None:
        self._pipeline = pipeline
        self._index = index
        self._filler = filler
        self._clock = clock
        self._limits = limits
        self._budget = WindowBudget(limits.window_messages)
        self._key_budget = KeyBudget(limits.dedup_keys)
        self._rng = rng
        self._chunks = chunks
        self._moves = moves
        self._attempts = attempts
        self._keys = keys
        self._members = members
        self._closings = closings
        self._end_offsets = end_offsets
        self.doubtful_until_ms = doubtful_until_ms
        self._on_change = on_change
        self._on_dead = on_dead
        self.recovered_at_ms = clock.now_ms()
        self.replaying = True  # the journal may still add to what is brought to life
        self.subscriptions: dict[int, Subscription] = {}  # every living one, by id

    @property
    def keyed_topics(self) -> list[int]:
        """The ids of topics whose dedup keys wait to be brought to life."""
        return list(self._keys)

    @property
    def closed_topics(self) -> list[int]:
        """The ids of topics with closed groups that wait to be brought to life."""
        return list(self._closings)

    def has_attempts(self, subscription_id: int) -> bool:
        """Whether attempts of this one wait to be brought to life."""
        return subscription_id in self._attempts

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
        for _, data in self._keys.pop(record.id, []):
            topic.dedup.load(decode_keys(data))
        for chunk, data in self._chunks.pop(cancellations_id(record.id), []):
            topic.amendments.cancelled.load_chunk(chunk, data)
        for chunk, data in self._moves.pop(record.id, []):
            topic.amendments.moves.load_chunk(chunk, data)
        topic.groups.load(self._members.pop(record.id, []), self._closings.pop(record.id, []))
        self._pipeline.open_topic(record.id, end)
        for subscription in subscriptions:
            self._subscription(topic, subscription, new=False)
        return topic

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
                partial(self._on_dead, topic),
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
                partial(self._on_dead, topic),
            )
        self._remember(subscription, now_ms)
        self.subscriptions[record.id] = subscription
        if isinstance(subscription, SharedSubscription):
            topic.add_shared(subscription, now_ms)
            if record.fill_from < record.fill_until:
                self._filler.add(topic, subscription)
        else:
            topic.add_ordered(subscription)
        return subscription

    def _remember(self, subscription: Subscription, now_ms: int) -> None:
        subscription_id = subscription.record.id
        for chunk, data in self._chunks.pop(subscription_id, []):
            subscription.acked.load_chunk(chunk, data)
        for chunk, data in self._chunks.pop(lapses_id(subscription_id), []):
            subscription.lapses().load_chunk(chunk, data)
        for _, data in self._attempts.pop(subscription_id, []):
            table = decode_attempts(data)
            rows = Rows.recalled(table.due_ms, table.offsets, table.attempts)
            subscription.attempts.recover(rows, table.next_ms, stored=True)
        if not self.replaying:
            subscription.begin(now_ms)


def _first_mark(topic: Topic, record: SubscriptionRecord, *, new: bool) -> Key:
    """Where a subscription begins to read; a new one with what came while it was made durable."""
    if record.fill_from < record.fill_until:
        # What was due before waits for the filler, which knows what of it is forgotten.
        begin_ms = record.created_at_ms + 1
    elif not new:
        return KEY_MIN
    else:
        begin_ms = record.start_due_ms
    return Key(min(begin_ms, topic.claims.arrived_since_ms), 0) if new else Key(begin_ms, 0)
