"""Group completion: closes groups of messages, and fires their follow-ups (Q10).

A *group* is a set of messages of one topic with the same group name. Closing it for a subscription
creates a *completion*, with a *follow-up*: a message that is published once the subscription is
done with all messages of the group. The completion then *fires*::

    close ──► a row, durable ──► armed: messages the subscription will never get are
                                 acknowledged, the others watched (broker/topic/groups.py)
                                        │ the last message is done
                                        ▼
                one statement: the row is fired · its entry in the inbox ──► InboxRelay

The statement that fires a completion is executed after all items that wait in its topic's lane,
including the acknowledgements that complete the group. So a follow-up is never durable without
them. A start of the broker arms every completion that has not fired. So a crash between the last
acknowledgement and the firing only delays the follow-up. A completion fires once, and only while
its subscription exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np
import trio

from escapement.broker.limits import BrokerLimits
from escapement.broker.log.log_reader import LogReader
from escapement.broker.outage import Outage
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.registry.changes import Changes
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.start_position import NEVER_MS
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import (
    Conflict,
    LimitExceeded,
    NotFound,
    WrongBundle,
)
from escapement.message import Int64s
from escapement.names import TopicName, check_name
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.engine.base import Engine
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.event_group import (
    Completion,
    create_completion,
    delete_completions,
    digest_of,
    fire,
)

# The most follow-ups in one transaction. Each has up to ``follow_up_bytes``.
_FIRED_AT_ONCE: Final = 16
# The pause before a retry while the database is unavailable.
_RETRY_S: Final = 1.0
# The pause between two searches for finished groups, which are forgotten.
_FORGET_S: Final = 60.0


class GroupCompleter:
    """The group completions of all topics, and the task that arms and fires them.

    Args:
      subscriptions: the subscriptions of all active topics, by id.
      on_posted: called when entries were written to the inbox.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        subscriptions: Mapping[int, Subscription],
        pipeline: CommitPipeline,
        publishing: Publishing,
        reader: LogReader,
        clock: Clock,
        limits: BrokerLimits,
        on_posted: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._subscriptions = subscriptions
        self._pipeline = pipeline
        self._changes = Changes(pipeline.transact)
        self._publishing = publishing
        self._reader = reader
        self._clock = clock
        self._limits = limits
        self._on_posted = on_posted
        self._unarmed: dict[int, Completion] = {}  # to be armed, by id
        self._complete: dict[int, Completion] = {}  # to be fired, by id
        self._wake = trio.Event()

    # -- requests --------------------------------------------------------------

    async def close(
        self, topic_name: TopicName, group: str, subscription: str, follow_up: InboxEntry
    ) -> Completion:
        """Close a group: no further message can join it.

        When the subscription is done with all of its messages, ``follow_up`` is published. A
        repeated call returns the same completion. The group may be closed for other subscriptions
        too.

        Raises:
          NotFound: the topic or the subscription does not exist.
          Conflict: the group is already closed for this subscription with another follow-up.
          InvalidRequest, DelaysDisabled, DelayTooLong, DelayTooShort: the follow-up could not be
            published.
          LimitExceeded: the follow-up is too large, or the topic has too many groups.
        """
        topic = self._registry.topic(topic_name)
        check_name("group", group)
        self._registry.subscription_record(topic, subscription)
        if follow_up.size_bytes > self._limits.follow_up_bytes:
            raise LimitExceeded(
                f"a follow-up may have at most {self._limits.follow_up_bytes} bytes, "
                f"not {follow_up.size_bytes}"
            )
        target = await self._target(follow_up)
        async with self._registry.alone(topic):
            record = self._registry.subscription_record(topic, subscription)
            found = topic.groups.find(group, record.id)
            if found is not None:
                if found.digest != digest_of(follow_up):
                    raise Conflict(
                        f"group {group} is already closed for {subscription}, with another "
                        "follow-up"
                    )
                return found
            if target is not None and target.delays is not None and follow_up.times.given:
                target.delays.check(follow_up.times, follow_up.count, self._clock.now_ms())
            first = topic.groups.begin_completion(group, self._limits.groups)
            try:
                completion = await self._changes.durably(
                    lambda connection: create_completion(
                        connection,
                        topic.id,
                        group,
                        record.id,
                        subscription,
                        follow_up,
                        self._clock.now_ms(),
                    ),
                    topic_id=topic.id,
                )
                topic.groups.enter(completion)
            finally:
                if first:
                    topic.groups.end_completion(group)
        self._arm([completion])
        return completion

    async def delete(self, topic_name: TopicName, group: str) -> None:
        """Forget a group and its completions, fired or not.

        Raises:
          NotFound: if the topic or the group does not exist.
        """
        topic = self._registry.topic(topic_name)
        async with self._registry.alone(topic):
            if group not in topic.groups.names():
                raise NotFound(f"{topic.name.full} has no group {group}")
            await self._forget(topic, group)

    async def _forget(self, topic: Topic, group: str) -> None:
        await self._changes.durably(
            lambda connection: delete_completions(connection, topic.id, group),
            topic_id=topic.id,
            forgets=group,
        )

    # -- events ----------------------------------------------------------------

    def look(self, topic: Topic) -> None:
        """Arm the completions of a topic that have not fired.

        Called at a start, and when a seek or a reschedule has changed which messages a subscription
        is to get.
        """
        self._arm(topic.groups.waiting())

    def done(self, topic: Topic, subscription: Subscription, offsets: Int64s) -> None:
        """Queue the completions of a subscription that are complete now, to be fired.

        Called when a subscription has acknowledged messages, or when messages were cancelled.
        """
        complete = topic.groups.done(subscription, topic.amendments, offsets)
        if complete:
            self._complete.update({completion.id: completion for completion in complete})
            self._wake.set()

    def _arm(self, completions: list[Completion]) -> None:
        if completions:
            self._unarmed.update({completion.id: completion for completion in completions})
            self._wake.set()

    async def run(self) -> None:
        """Arm and fire completions, and forget finished groups, forever."""
        for topic in self._registry.active.values():
            self.look(topic)
        outage = Outage("groups.waiting", "group completion waits")
        forget_at_s = trio.current_time() + _FORGET_S
        while True:
            wait_s = _RETRY_S if outage.goes_on else max(0.0, forget_at_s - trio.current_time())
            with trio.move_on_after(wait_s):
                await self._wake.wait()
            self._wake = trio.Event()
            with outage:
                await self._arm_all()
                await self._fire_all()
                if trio.current_time() >= forget_at_s:
                    forget_at_s = trio.current_time() + _FORGET_S
                    await self._forget_finished()

    async def _target(self, follow_up: InboxEntry) -> Topic | None:
        """Return the topic of a follow-up, after checking that it accepts the follow-up's times.

        Returns None if the topic belongs to another bundle, whose inbox relay checks them later.
        """
        try:
            target = await self._registry.ensure_topic(TopicName.parse(follow_up.target))
        except WrongBundle:
            return None
        self._publishing.check_times(target, follow_up.times)
        return target

    # -- arming ----------------------------------------------------------------

    async def _arm_all(self) -> None:
        while self._unarmed:
            id, completion = next(iter(self._unarmed.items()))
            if parties := self._parties(completion):
                await self._waive(completion, *parties)
            if self._unarmed.get(id) is not completion:
                continue  # a seek has replaced the completion, which is armed next
            del self._unarmed[id]
            if not (parties := self._parties(completion)):
                continue
            topic, subscription = parties
            if not topic.groups.is_waiting(completion):
                continue
            if topic.groups.arm(completion, subscription, topic.amendments):
                self._complete[id] = completion

    def _parties(self, completion: Completion) -> tuple[Topic, Subscription] | None:
        """Return the topic and the subscription of a completion; None if one was deleted."""
        topic = self._registry.active.get(completion.topic_id)
        subscription = self._subscriptions.get(completion.subscription_id)
        return None if topic is None or subscription is None else (topic, subscription)

    async def _waive(
        self, completion: Completion, topic: Topic, subscription: Subscription
    ) -> None:
        """Acknowledge the messages of a group that the subscription will never get."""
        if completion.group not in topic.groups.members:
            return
        log_begin = await self._reader.first_offset(topic.id, topic.next_offset)
        below = max(subscription.record.start_offset, log_begin)
        for base, remainders in topic.groups.left(completion, subscription, topic.amendments):
            offsets = base + np.array(remainders.to_array(), np.int64)
            offsets = offsets[offsets < below]
            if len(offsets):
                waived = offsets[~await self._covered(topic, subscription, offsets)]
                if self._subscriptions.get(subscription.record.id) is not subscription:
                    return  # the subscription was sought or deleted meanwhile
                self._pipeline.check_acks(len(waived))
                subscription.acknowledge(waived, None)

    async def _covered(
        self, topic: Topic, subscription: Subscription, offsets: Int64s
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which messages a subscription will get; bool[n].

        Args:
          offsets: messages from before the subscription's start offset or the log's beginning.
        """
        record = subscription.record
        early = bool((offsets < record.start_offset).all())
        if isinstance(subscription, OrderedSubscription):
            return np.zeros(len(offsets), np.bool_)
        if early and record.start_due_ms >= NEVER_MS:
            return np.zeros(len(offsets), np.bool_)
        # No subscription gets messages that the log no longer has; ``times`` returns -1 for them.
        due_ms, _ = await self._reader.times(topic.id, offsets, topic.amendments.moves)
        there = due_ms >= 0
        due_ms = topic.amendments.moves.current(offsets, due_ms)
        return there & ((offsets >= record.start_offset) | (due_ms >= record.start_due_ms))

    # -- firing ----------------------------------------------------------------

    async def _fire_all(self) -> None:
        while self._complete:
            first = next(iter(self._complete.values()))
            some = [c for c in self._complete.values() if c.topic_id == first.topic_id]
            some = some[:_FIRED_AT_ONCE]
            now_ms = self._clock.now_ms()
            fired: set[int] = await self._changes.durably(
                partial(fire, self._engine, completions=some, now_ms=now_ms),
                topic_id=first.topic_id,
            )
            topic = self._registry.active.get(first.topic_id)
            for completion in some:
                del self._complete[completion.id]
                if completion.id in fired and topic is not None:
                    topic.groups.fired(completion, now_ms)
            if fired:
                self._on_posted()

    # -- forgetting ------------------------------------------------------------

    async def _forget_finished(self) -> None:
        """Forget the groups whose completions all fired at least ``group_retention_ms`` ago.

        Completions whose subscription was deleted never fire, and need not.
        """
        for topic in list(self._registry.active.values()):
            before_ms = self._clock.now_ms() - topic.policy.group_retention_ms
            finished = topic.groups.finished(before_ms, self._subscriptions)
            if not finished:
                continue
            with suppress(NotFound):  # the topic was deleted meanwhile
                async with self._registry.alone(topic):
                    # Ask again: a group may have been closed for another subscription meanwhile.
                    for group in topic.groups.finished(before_ms, self._subscriptions):
                        await self._forget(topic, group)
