"""The state of passive topics, as rows of bytes.

A *passive* topic exists but has no runtime. The *runtime* of an active topic is its
:class:`~escapement.broker.topic.topic.Topic` with its subscriptions, about 18 KiB. A passive topic
has instead the *rows* that checkpoints write to the database: sets of acknowledged and cancelled
offsets, the new due times of moved messages, attempts, dedup keys, replace keys and groups. At a
start, recovery fills :class:`PassiveTopics` from the database. The passivator adds each topic that
it makes passive. When a topic becomes active, its rows are moved into its runtime.

Invariant: for each topic, either its runtime or ``PassiveTopics`` has the rows, never both.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from escapement.broker.subscription.counts import Counts
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.topic import Topic
from escapement.storage.catalog.catalog import SubscriptionRecord, TopicRecord
from escapement.storage.data_table import loaded
from escapement.storage.encoding.attempts import decode_attempts
from escapement.storage.encoding.dedup_keys import decode_keys
from escapement.storage.encoding.replace_keys import decode_replace_keys
from escapement.storage.inbox.event_group import Completion
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.checkpoint import MemberRow

NumberedRows = dict[int, list[tuple[int, bytes]]]


class Figures(NamedTuple):
    """Figures about a topic that this broker keeps and no checkpoint stores."""

    published: int  # messages since this broker began to serve the topic
    doubtful_below: int  # see ``Topic``
    counts: dict[int, Counts]  # by subscription id


class Remains(NamedTuple):
    """The state of a topic that becomes passive, to keep when its runtime is gone."""

    topic_id: int
    next_offset: int
    sets: dict[int, tuple[int, list[tuple[int, bytes]]]]  # sets of offsets by id: length, rows
    moves: list[tuple[int, bytes]]  # rows of moved messages
    figures: Figures
    producers: dict[str, Producer]  # by name
    records: list[SubscriptionRecord]


class PassiveTopics:
    """The stored rows of all passive topics.

    Args:
      chunks: rows of sets of offsets. A subscription's id names the set of its acknowledged
        messages, ``lapses_id`` the set of those that expired or were dropped undelivered, and
        ``cancellations_id`` the set of a topic's cancelled messages.
      moves: rows with the due times of moved messages, by topic id.
      attempts: rows of delivery attempts, by subscription id.
      keys: rows of dedup keys, by topic id.
      replace_keys: rows of replace keys, by topic id.
      members: the messages of groups, by topic id.
      completions: the completions of groups, by topic id.
    """

    def __init__(
        self,
        *,
        chunks: NumberedRows,
        moves: NumberedRows,
        attempts: NumberedRows,
        keys: NumberedRows,
        replace_keys: NumberedRows,
        members: dict[int, list[MemberRow]],
        completions: dict[int, list[Completion]],
    ) -> None:
        self._chunks = chunks
        self._moves = moves
        self._attempts = attempts
        self._keys = keys
        self._replace_keys = replace_keys
        self._members = members
        self._completions = completions
        self._figures: dict[int, Figures] = {}  # by topic id
        self._lengths: dict[int, int] = {}  # how many offsets each counted set has, by id
        self._uncounted = set(chunks)  # ids of sets whose offsets were not counted yet

    # -- recovery --------------------------------------------------------------

    @property
    def keyed_topics(self) -> list[int]:
        """The ids of passive topics with dedup keys."""
        return list(self._keys)

    @property
    def replacing_topics(self) -> list[int]:
        """The ids of passive topics with replace keys."""
        return list(self._replace_keys)

    @property
    def closed_topics(self) -> list[int]:
        """The ids of passive topics with group completions, whose groups are closed."""
        return list(self._completions)

    def has_attempts(self, subscription_id: int) -> bool:
        """Return whether there are rows of attempts for a passive topic's subscription."""
        return subscription_id in self._attempts

    # -- a topic becomes active ------------------------------------------------

    def move_topic(self, topic: Topic) -> None:
        """Fill the new runtime of a topic from its rows, and remove these rows."""
        id = topic.id
        for _, data in self._keys.pop(id, []):
            topic.dedup.load(decode_keys(data))
        for _, data in self._replace_keys.pop(id, []):
            topic.replace_keys.load(decode_replace_keys(data))
        self._move_set(cancellations_id(id), topic.amendments.cancelled)
        loaded(self._moves.pop(id, []), topic.amendments.moves)
        topic.groups.load(self._members.pop(id, []), self._completions.pop(id, []))
        if (figures := self._figures.get(id)) is not None:
            topic.published = figures.published
            topic.doubtful_below = figures.doubtful_below

    def move_subscription(self, subscription: Subscription) -> None:
        """Fill the new runtime of a subscription from its rows, and remove these rows."""
        record = subscription.record
        self._move_set(record.id, subscription.acked)
        if lapses_id(record.id) in self._chunks:
            self._move_set(lapses_id(record.id), subscription.lapses())
        for _, data in self._attempts.pop(record.id, []):
            table = decode_attempts(data)
            rows = Rows.recalled(table.due_ms, table.offsets, table.attempts)
            subscription.attempts.recover(rows, table.next_ms, stored=True)
        figures = self._figures.get(record.topic_id)
        if figures is not None and record.id in figures.counts:
            subscription.counts = figures.counts[record.id]

    def _move_set(self, id: int, offsets: OffsetSet) -> None:
        loaded(self._chunks.pop(id, []), offsets)
        self._lengths.pop(id, None)
        self._uncounted.discard(id)

    # -- a topic becomes passive ---------------------------------------------

    def keep(self, remains: Remains) -> None:
        """Take over the state of a topic that becomes passive."""
        for id, (length, rows) in remains.sets.items():
            self._chunks[id] = rows
            self._lengths[id] = length
        if remains.moves:
            self._moves[remains.topic_id] = remains.moves
        self._figures[remains.topic_id] = remains.figures

    # -- compaction ------------------------------------------------------------

    def count(self) -> Iterator[None]:
        """Count the offsets of each set that was not counted yet, one set at each step."""
        while self._uncounted:
            id = self._uncounted.pop()
            self._lengths[id] = _length(self._chunks[id])
            yield

    def may_have_dead(
        self, record: TopicRecord, subscriptions: Iterable[SubscriptionRecord]
    ) -> bool:
        """Return whether a passive topic may have messages that no subscription will get."""
        if self.has_changes(record.id):
            return True
        return any(one.start_offset or one.id in self._chunks for one in subscriptions)

    def has_changes(self, topic_id: int) -> bool:
        """Return whether messages of a passive topic were rescheduled or cancelled."""
        return topic_id in self._moves or cancellations_id(topic_id) in self._chunks

    def done(self, subscription_id: int) -> int:
        """Return how many messages a passive topic's subscription has acknowledged.

        Returns 0 until ``count`` has counted them.
        """
        return self._lengths.get(subscription_id, 0)

    def figures(self, topic_id: int) -> Figures | None:
        """Return the figures of a passive topic; None if this broker has not served it."""
        return self._figures.get(topic_id)

    def cancelled(self, topic_id: int) -> int:
        """Return how many messages of a passive topic are cancelled.

        Returns 0 until ``count`` has counted them.
        """
        return self._lengths.get(cancellations_id(topic_id), 0)


def remains_of(topic: Topic) -> Remains:
    """Return the state of an active topic that is idle, so that it can become passive."""
    sets: dict[int, OffsetSet] = {cancellations_id(topic.id): topic.amendments.cancelled}
    counts = {}
    for one in topic.subscriptions():
        sets[one.record.id] = one.acked
        if one.lapsed is not None:
            sets[lapses_id(one.record.id)] = one.lapsed
        if one.counts != Counts():
            counts[one.record.id] = one.counts
    return Remains(
        topic.id,
        topic.next_offset,
        {id: (len(offsets), offsets.rows()) for id, offsets in sets.items() if len(offsets)},
        topic.amendments.moves.rows(),
        Figures(topic.published, topic.doubtful_below, counts),
        topic.producers,
        [one.record for one in topic.subscriptions()],
    )


def is_idle(topic: Topic) -> bool:
    """Return whether an active topic could become passive without loss of state.

    An idle topic has no client and no operation in progress. A topic with a time to live, a quota,
    dedup keys, replace keys, groups, a publish rate or an exclusive or failover subscription is
    never idle.
    """
    return not (
        topic.is_governed
        or topic.deleting
        or topic.retention.subscribing
        or topic.ordered
        or topic.dedup.is_used
        or topic.replace_keys.is_used
        or len(topic.groups)
        or len(topic.amendments.withheld)
        or topic.archive_awaited_since_ms
        or topic.policy.max_publish_rate
        or any(one.is_used for one in topic.producers.values())
        or not all(one.keeps_nothing for one in topic.shared.values())
    )


def _length(rows: list[tuple[int, bytes]]) -> int:
    return len(loaded(rows, OffsetSet()))
