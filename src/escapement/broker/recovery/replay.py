"""The replay of the journal behind the last checkpoint: the second half of recovery.

The acknowledgements and attempts of the journal go to the subscriptions, its dedup keys and event
groups to their topics. The log rows that the index lacks are added to it, in bounded steps.
Whenever memory fills up, the replay writes a checkpoint. Such a checkpoint states that the index
covers the journal only up to the position that it covered at the start. Otherwise, after a crash
during the replay, the next start would not read the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from escapement.broker.recovery.activation import Activation
from escapement.broker.recovery.recovery import Ground
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.passive_topics import PassiveTopics
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.checkpointer import Checkpointer
from escapement.broker.upkeep.progress import Progress
from escapement.group_names import Member
from escapement.storage.blocking import Run
from escapement.storage.catalog.producers import ProducerRecord
from escapement.storage.state.checkpoint import ProducerRow
from escapement.storage.state.lag_table import behind


class Replay:
    """The replay of one start."""

    def __init__(
        self,
        ground: Ground,
        registry: Registry,
        activation: Activation,
        passive_topics: PassiveTopics,
        progress: Progress,
        checkpointer: Checkpointer,
        run: Run,
    ) -> None:
        self._ground = ground
        self._registry = registry
        self._activation = activation
        self._passive = passive_topics
        self._progress = progress
        self._checkpointer = checkpointer
        self._run = run
        self._topic_of: dict[int, int] = {}  # the topic id of each subscription, by its id

    async def run(self) -> None:
        """Replay the journal up to the last group commit."""
        state = self._ground.state
        self._registry.load(
            state.namespaces,
            state.deleting_namespaces,
            state.topics,
            state.subscriptions,
            list(self._producers()),
        )
        self._topic_of = {
            record.id: record.topic_id for record in self._registry.all_subscriptions()
        }
        self._replay_ends()
        await self._replay_moves()
        self._replay_acks()
        self._replay_lags()
        self._replay_attempts()
        self._replay_keys()
        self._replay_replace_keys()
        self._replay_groups()
        await self._replay_rows()
        self._progress.positions.update(state.journal_ends)
        await self._activate()

    def _producers(self) -> Iterator[ProducerRecord]:
        marks = self._ground.tail.producers()
        now_ms = self._activation.recovered_at_ms
        for record in self._ground.state.producers:
            mark = marks.get(record.id)
            if mark is None or mark.last_sequence <= record.last_sequence:
                yield record
                continue
            self._progress.producers[record.id] = ProducerRow(*mark, now_ms)
            yield replace(record, last_sequence=mark.last_sequence, last_offset=mark.last_offset)

    def _replay_ends(self) -> None:
        """Let the next checkpoint write where the topics' logs end, which only the journal has.

        That includes topics whose log rows are all in the index. A broker may have died in a
        checkpoint after it wrote the index's manifest and before it wrote the state. The next
        checkpoint trims the journal.
        """
        for topic_id in self._ground.tail.next_offsets():
            self._topic(topic_id)

    async def _replay_moves(self) -> None:
        """Replay the new due times of moved messages, before any message is added to the index.

        If a message was moved several times, the last due time counts.
        """
        ground = self._ground
        steps = ground.tail.moved(ground.log, ground.connection, self._registry.exists)
        while (step := await self._run(next, steps, None)) is not None:
            for moved in step:
                if (topic := self._topic(moved.topic_id)) is not None:
                    moves = topic.amendments.moves
                    moves.put(moved.offsets, moved.due_ms, moved.stale_ms, moved.base)

    def _replay_acks(self) -> None:
        for acked in self._ground.tail.acknowledged():
            subscription = self._subscription(acked.subscription_id)
            if subscription is not None:
                subscription.acked.add(acked.offsets)
        for lapsed in self._ground.tail.lapsed():
            subscription = self._subscription(lapsed.subscription_id)
            if subscription is not None:
                subscription.lapses().add(lapsed.offsets)
        for topic_id, offsets in self._ground.tail.cancelled():
            if (topic := self._topic(topic_id)) is not None:
                topic.amendments.cancelled.add(offsets)

    def _replay_lags(self) -> None:
        """Replay the lag statistics that the last checkpoint did not write."""
        for row, lag in behind(self._ground.lag_ends, self._ground.tail.rows):
            self._progress.lags.add(row.epoch, row.position.seq, lag)

    def _replay_attempts(self) -> None:
        for subscription_id, table in self._ground.tail.attempted():
            subscription = self._subscription(subscription_id)
            if subscription is not None:
                rows = Rows.recalled(table.due_ms, table.offsets, table.attempts)
                subscription.attempts.recover(rows, table.next_ms, stored=False)

    def _replay_keys(self) -> None:
        # Activate topics with stored dedup keys at once, because these keys expire.
        for topic_id in self._passive.keyed_topics:
            if self._registry.exists(topic_id):
                self._registry.activate(topic_id)
                self._progress.keyed.add(topic_id)
        for row in self._ground.tail.rows:
            for topic_id, keys in row.entry.keyed:
                if (topic := self._topic(topic_id)) is not None:
                    topic.dedup.recover(keys)
                    self._progress.keyed.add(topic_id)

    def _replay_replace_keys(self) -> None:
        # Activate topics with replace keys, because a passive topic has none.
        for topic_id in self._passive.replacing_topics:
            if self._registry.exists(topic_id):
                self._registry.activate(topic_id)
                self._progress.replacing.add(topic_id)
        for row in self._ground.tail.rows:
            for topic_id, keys in row.entry.replaceable:
                if (topic := self._topic(topic_id)) is not None:
                    topic.replace_keys.recover(keys)
                    self._progress.replacing.add(topic_id)

    def _replay_groups(self) -> None:
        for topic_id in self._passive.closed_topics:
            if self._registry.exists(topic_id):
                self._registry.activate(topic_id)
        for row in self._ground.tail.rows:
            for topic_id, group, offsets in row.entry.grouped:
                if (topic := self._topic(topic_id)) is None:
                    continue
                if len(offsets):
                    topic.groups.join([Member(group, offsets)])
                else:
                    topic.groups.forget_members(group)

    def _topic(self, topic_id: int) -> Topic | None:
        """Return the runtime of a topic that a journal entry changes; None if it was deleted."""
        if not self._registry.exists(topic_id):
            return None
        self._progress.touched.add(topic_id)
        return self._registry.activate(topic_id)

    def _subscription(self, subscription_id: int) -> Subscription | None:
        """Return the runtime of a subscription that a journal entry changes; None if deleted."""
        topic_id = self._topic_of.get(subscription_id)
        if topic_id is None or self._topic(topic_id) is None:
            return None
        return self._activation.subscriptions[subscription_id]

    async def _replay_rows(self) -> None:
        if self._ground.rebuild:
            return  # the backfill adds all rows of the log while the broker serves
        index = self._ground.index
        missing = self._ground.missing()
        while (rows := await self._run(next, missing, None)) is not None:
            for row in rows:
                topic = self._topic(row.key.topic_id)
                if topic is None:
                    continue  # the topic was deleted, and its rows are being freed
                content = row.content
                topic.recover(row.key.base_offset, content.due_ms, content.batch(), content.offsets)
            if index.needs_checkpoint:
                await self._checkpointer.checkpoint()

    async def _activate(self) -> None:
        """Activate the topics that have work even if no client uses them."""
        registry, index = self._registry, self._ground.index
        for topic_id in index.topics():
            if not registry.exists(topic_id):
                index.drop_topic(topic_id)
        for record in list(registry.all_subscriptions()):
            if record.is_filling or self._passive.has_attempts(record.id):
                registry.activate(record.topic_id)
        await registry.activate_governed()
        now_ms = self._activation.recovered_at_ms
        self._activation.replaying = False
        for topic in registry.active.values():
            topic.recovered(now_ms)
            for subscription in topic.subscriptions():
                subscription.begin(now_ms)
                if subscription.attempts.has_new:
                    # A checkpoint during the replay has not written these attempts, and the next
                    # one trims the journal that has them.
                    self._progress.touched.add(topic.id)
