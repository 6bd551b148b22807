"""The effect of a durable group commit on index, timing wheels, cursors and receipts.

The commit pipeline passes each durable group here once, in the order of its lane. Applying a group
is one synchronous step without an ``await``, so other tasks see either nothing or all of it: the
messages can be delivered, the acknowledgements are durable, and the receipts are queued.

Besides new messages and acknowledgements, a group has *restatements*: log rows that state earlier
messages again, with a new due time (a *move*) or unchanged (a *relocation*). A topic *watches
groups* if a follow-up waits for a subscription to be done with all messages of a group.
"""

from __future__ import annotations

from collections.abc import Callable

from escapement.broker.metering.totals import Totals
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.publishing.rescheduling import Restatement
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.publication import Publication
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.checkpointer import Checkpointer
from escapement.broker.upkeep.progress import Progress
from escapement.clock import Clock
from escapement.message import Int64s, MessageBatch
from escapement.storage.commit.group import Group, Moved, Restated, TopicGroup
from escapement.storage.commit.items import Acks, Replaced
from escapement.storage.index import DelayedIndex
from escapement.storage.journal.entry import cancellations_id
from escapement.storage.state.checkpoint import ProducerRow


class Settlement:
    """The step that applies durable group commits.

    Args:
      subscriptions: all subscriptions with a runtime, by id.
      epoch: the epoch of the lease that the groups are committed under.
      totals: the counters of the whole broker.
      on_appended: called with each topic that has new, moved or cancelled messages.
      on_done: called with a topic that watches groups, a subscription of it, and the messages with
        which the subscription is now done.
      on_left: called with a topic that watches groups, when a message has moved to a time at which
        a subscription does not get it any more.
    """

    def __init__(
        self,
        registry: Registry,
        subscriptions: dict[int, Subscription],
        index: DelayedIndex,
        publishing: Publishing,
        checkpointer: Checkpointer,
        progress: Progress,
        clock: Clock,
        epoch: int,
        totals: Totals,
        on_appended: Callable[[Topic], None],
        on_done: Callable[[Topic, Subscription, Int64s], None],
        on_left: Callable[[Topic], None],
    ) -> None:
        self._registry = registry
        self._subscriptions = subscriptions
        self._index = index
        self._publishing = publishing
        self._checkpointer = checkpointer
        self._progress = progress
        self._clock = clock
        self._epoch = epoch
        self._totals = totals
        self._on_appended = on_appended
        self._on_done = on_done
        self._on_left = on_left

    def take(self, group: Group) -> None:
        """Apply a group commit that is durable."""
        now_ms = self._clock.now_ms()
        self._progress.positions[group.lane] = group.position
        self._progress.finished[group.lane] = group.position
        touched = self._progress.touched
        touched.update([part.topic_id for part in group.topics])
        touched.update([restated.item.topic_id for restated in group.restated])
        touched.update([acks.topic_id for acks in group.acks])
        touched.update([attempts.topic_id for attempts in group.attempts])
        for part in group.topics:
            self._append(part, group.accepted_at_ms, now_ms)
        # Apply relocations before moves. If a group has both for a message, the relocation was
        # submitted first.
        moved: dict[int, list[Restated]] = {}
        for restated in group.restated:
            if restated.item.times is None:
                self._relocate(restated)
            else:
                moved.setdefault(restated.item.topic_id, []).append(restated)
        for topic_id, together in moved.items():
            self._move(topic_id, together, now_ms)
        for acks in group.acks:
            if acks.subscription_id < 0:
                self._cancel(acks)
            subscription = self._subscriptions.get(acks.subscription_id)
            if subscription is not None:
                subscription.acked.committed(acks.offsets)
            self._tell_groups(acks, subscription)
            if acks.done is not None:
                acks.done(len(acks.offsets))
        for lag in group.lags:
            self._progress.lags.add(self._epoch, group.seq, lag)
        for statement in group.statements:
            if statement.forgets and statement.error is None:
                self._forget_group(statement.topic_id, statement.forgets)
        if group.topics:
            self._publishing.settled()
        if (group.topics or group.restated) and self._index.needs_checkpoint:
            self._checkpointer.want()

    def _move(self, topic_id: int, moved: list[Restated], now_ms: int) -> None:
        restatements: list[Restatement] = [restated.item.context for restated in moved]
        topic = self._registry.active.get(topic_id)  # None: the topic was deleted meanwhile
        if topic is not None:
            batch = MessageBatch.concat([restatement.batch for restatement in restatements])
            together = Moved.of(moved)
            topic.move(together, batch, now_ms)
            self._on_appended(topic)
            if topic.groups.watched and _leaves_a_range(topic, together):
                self._on_left(topic)
        for restatement in restatements:
            restatement.done(None)

    def _relocate(self, restated: Restated) -> None:
        topic = self._registry.active.get(restated.item.topic_id)  # None: the topic was deleted
        if topic is not None:
            topic.relocate(restated)
        restated.item.context()

    def _cancel(self, cancelled: Acks) -> None:
        topic = self._registry.active.get(cancelled.topic_id)  # None: the topic was deleted
        if topic is not None:
            self._count_cancelled(topic, cancelled.offsets)
            topic.amendments.cancelled.committed(cancelled.offsets)
            topic.quota_watch.grown = True  # the quota may now have to drop other messages
            self._on_appended(topic)

    def _count_cancelled(self, topic: Topic, offsets: Int64s) -> None:
        """Count messages that become durably cancelled now.

        A client may cancel a message while another one replaces it. It counts once.
        """
        gone = topic.amendments.durably_cancelled(offsets)
        self._totals.cancelled += len(offsets) - (0 if gone is None else int(gone.sum()))

    def _tell_groups(self, acks: Acks, subscription: Subscription | None) -> None:
        topic = self._registry.active.get(acks.topic_id)
        if topic is None or not topic.groups.watched:
            return
        if subscription is not None:
            self._on_done(topic, subscription, acks.offsets)
        elif acks.subscription_id < 0:  # the topic's cancelled messages
            for any_kind in topic.subscriptions():
                self._on_done(topic, any_kind, acks.offsets)

    def _forget_group(self, topic_id: int, group: str) -> None:
        topic = self._registry.active.get(topic_id)
        if topic is not None:
            topic.groups.forget(group)
            self._progress.touched.add(topic_id)

    def _append(self, part: TopicGroup, accepted_at_ms: int, now_ms: int) -> None:
        topic = self._registry.active.get(part.topic_id)  # None: the topic was deleted meanwhile
        publications: list[Publication] = [append.context for append in part.appends]
        if topic is not None:
            replaced = part.replaced
            if replaced is not None:
                self._count_cancelled(topic, replaced.cancelled)
                topic.amendments.replaced(replaced.cancelled)
            if len(part.due_ms):
                self._totals.published += len(part.due_ms)
                batches = [publication.batch for publication in publications]
                topic.accept(part.base_offset, part.due_ms, MessageBatch.concat(batches), now_ms)
            if part.has_members:
                topic.groups.join(part.members())
            keys = part.keys(accepted_at_ms)
            if keys is not None:
                topic.dedup.store(keys)
                self._progress.keyed.add(topic.id)
            if replaced is not None:
                self._replace(topic, replaced, now_ms)
        for append, base_offset in zip(part.appends, part.base_offsets, strict=True):
            publication: Publication = append.context
            publication.committed(base_offset, part.previous_of(append, base_offset))
            producer = publication.producer
            if producer is not None:
                self._progress.producers[producer.id] = ProducerRow(
                    producer.id, producer.last_sequence, producer.last_offset, now_ms
                )
        if topic is not None:
            self._on_appended(topic)

    def _replace(self, topic: Topic, replaced: Replaced, now_ms: int) -> None:
        """Note what became of messages with replace keys, which are durable now."""
        topic.replace_keys.store(replaced.keys, now_ms)
        self._progress.replacing.add(topic.id)
        if len(replaced.cancelled):
            self._tell_groups(Acks(topic.id, cancellations_id(topic.id), replaced.cancelled), None)


def _leaves_a_range(topic: Topic, moved: Moved) -> bool:
    """Return whether a shared subscription does not get a moved message at its new due time."""
    return any(
        bool(
            (
                one.covers(moved.stale_ms, moved.offsets) & ~one.covers(moved.due_ms, moved.offsets)
            ).any()
        )
        for one in topic.shared.values()
    )
