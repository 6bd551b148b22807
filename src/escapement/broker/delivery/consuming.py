"""The operations of consumers: subscribe, acknowledge, nack, extend, release, leave.

Each operation is one synchronous step on a subscription. It then wakes the pump, the task that
sends messages. Only creating, seeking and deleting a subscription waits, until the change is
durable. A *seek* makes a subscription begin again at another position.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from escapement.broker.log.log_reader import LogReader
from escapement.broker.recovery.activation import Activation
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.dead_letters.dead_letter import (
    DEAD_LETTERS_SUBSCRIPTION,
    Reason,
)
from escapement.broker.subscription.delivery.consumer import Consumer, Outlet
from escapement.broker.subscription.keys.key_ranges import check_range
from escapement.broker.subscription.policy_checks import check_ack_wait
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.handles import ConsumerHandle
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import (
    AlreadyExists,
    Conflict,
    EscapementError,
    InvalidRequest,
    NotFound,
)
from escapement.message import Int64s
from escapement.names import TableName, TopicName, check_name
from escapement.position import Position
from escapement.storage.catalog.catalog import Kind, SubscriptionRecord
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.traits import KeyRange


class Consuming:
    """The operations of consumers on all subscriptions.

    Args:
      find_table: returns the topic of a message table, given its name and that of a subscription.
      check_acks: raises if this many acknowledgements of a topic cannot be accepted now.
      wake: wakes the task that sends messages of a subscription.
      ack_wait_ms: the ack wait of a consumer of a shared subscription, if neither the consumer nor
        the subscription's policy sets one.
      on_change: called with a subscription whose next wake-up time may have become earlier.
      on_sought: called with a topic after a seek of one of its subscriptions.
    """

    def __init__(
        self,
        registry: Registry,
        activation: Activation,
        find_table: Callable[[str, str], Awaitable[Topic]],
        check_acks: Callable[[Topic, int], None],
        wake: Callable[[Topic, Subscription], None],
        log: LogReader,
        clock: Clock,
        ack_wait_ms: int,
        on_change: Callable[[Topic, Subscription], None],
        on_sought: Callable[[Topic], None],
    ) -> None:
        self._registry = registry
        self._activation = activation
        self._find_table = find_table
        self._check_acks = check_acks
        self._wake = wake
        self._log = log
        self._clock = clock
        self._ack_wait_ms = ack_wait_ms
        self._on_change = on_change
        self._on_sought = on_sought
        self._last_id = 0

    # -- consumers come and go -------------------------------------------------

    async def subscribe(
        self,
        topic_text: str,
        name: str,
        *,
        kind: Kind,
        position: Position,
        ack_wait_ms: int,
        consumer_name: str,
        wire_id: int,
        outlet: Outlet,
        key_range: KeyRange = None,
    ) -> ConsumerHandle:
        """Create a consumer of a subscription; create the subscription if it does not exist.

        The consumer gets no messages before :meth:`joined`, which the caller must call without an
        await in between.

        Args:
          position: where the subscription begins if it is created.
          ack_wait_ms: the consumer's ack wait; 0 for that of the subscription.
          wire_id: the id by which the consumer's connection knows it.
          outlet: the session, which sends the consumer's messages.
          key_range: the keys that the consumer wants; None for all.

        Raises:
          Conflict: if the subscription is of another kind, if it is exclusive and has a consumer,
            or if another consumer has some of the keys.
          InvalidRequest: if a key range is given and the subscription is not shared, or if the ack
            wait is longer than the subscription's ``max_backoff``.
          NotFound: if the topic does not exist and must not be created.
        """
        if key_range is not None and kind != "shared":
            raise InvalidRequest(f"a key range is for shared subscriptions, not {kind} ones")
        if TableName.is_meant(topic_text):
            topic = await self._find_table(topic_text, name)
            subscription = topic.find(name)
            check_ack_wait(topic.name, name, ack_wait_ms, subscription.record.policy)
        else:
            topic = await self._registry.ensure_topic(TopicName.parse(topic_text))
            subscription = await self._ensure(topic, name, kind, position)
            if ack_wait_ms:
                # Wait until a change of the subscription's policy is stored. Otherwise the new
                # policy could forbid this ack wait after the check.
                async with self._registry.alone(topic):
                    subscription = topic.find(name)
                    check_ack_wait(topic.name, name, ack_wait_ms, subscription.record.policy)
        if subscription.record.kind != kind:
            raise Conflict(
                f"the subscription {name} of {topic.name.full} is {subscription.record.kind}, "
                f"not {kind}; consume it as {subscription.record.kind}, or choose another name"
            )
        if kind == "exclusive" and subscription.consumers:
            raise Conflict(
                f"the exclusive subscription {name} of {topic.name.full} has a consumer already; "
                "use a failover subscription if several consumers are to stand by"
            )
        check_range(subscription.consumers, key_range)
        self._last_id += 1
        default_ms = self._ack_wait_ms if kind == "shared" else 0
        consumer = Consumer(
            self._last_id, wire_id, consumer_name, outlet, ack_wait_ms, default_ms, key_range
        )
        return ConsumerHandle(topic, name, consumer)

    async def _ensure(
        self, topic: Topic, name: str, kind: Kind, position: Position
    ) -> Subscription:
        if topic.subscription(name) is None:
            with suppress(AlreadyExists):
                await self.create(topic, name, kind, position)
        return topic.find(name)

    async def create(
        self,
        topic: Topic,
        name: str,
        kind: Kind,
        position: Position,
        policy: SubscriptionPolicy | None = None,
    ) -> None:
        """Create a subscription that begins at ``position``, and serve it.

        Raises:
          AlreadyExists: if a subscription has this name.
          InvalidRequest: if the position is past the log's end, or if the subscription is to keep
            dead letters and is not shared.
          StorageUnavailable: if the log must be read for the position and cannot be.
        """
        check_name("subscription", name)
        if name == DEAD_LETTERS_SUBSCRIPTION and kind != "shared":
            raise InvalidRequest(f"the subscription {name} keeps dead letters and must be shared")
        position = await self._resolve(topic, kind, position)
        await self._registry.create_subscription(
            topic,
            name,
            kind,
            position=position,
            policy=policy or SubscriptionPolicy(),
            serve=lambda record: self._activation.new_subscription(topic, record),
        )

    async def seek(self, topic: Topic, name: str, position: Position) -> None:
        """Begin a subscription again at ``position``; its consumers stay.

        A new subscription replaces the old one: no message is acknowledged, and attempts count from
        1. Messages that are in flight are taken back from their consumers.

        Raises:
          NotFound: if the topic has no subscription of this name.
          InvalidRequest: if the position is past the log's end.
          StorageUnavailable: if the log must be read for the position and cannot be.
        """
        kind = topic.find(name).record.kind
        position = await self._resolve(topic, kind, position)
        await self._registry.seek_subscription(
            topic, name, kind, position, lambda record: self._sought(topic, record)
        )

    def _sought(self, topic: Topic, record: SubscriptionRecord) -> None:
        """Replace a subscription's runtime after a seek, whose new record is durable."""
        old = topic.subscription(record.name)
        assert old is not None, "a seek and a delete are never under way together"
        topic.replace_keys.purge(self._clock.now_ms())
        new = self._activation.replace_subscription(topic, old, record)
        for consumer in new.consumers:
            consumer.outlet.rewound(consumer.wire_id, record.id)
        self._wake(topic, new)
        self._on_sought(topic)

    async def _resolve(self, topic: Topic, kind: Kind, position: Position) -> Position:
        """Return ``position``; turn a time into an offset unless the subscription is shared.

        Exclusive and failover subscriptions deliver in the order of offsets and ignore due times.
        """
        if kind == "shared" or position.kind != "time":
            return position
        end_offset = topic.next_offset
        return Position(
            "offset", await self._log.first_accepted(topic.id, position.value, end_offset)
        )

    def joined(self, handle: ConsumerHandle) -> None:
        """Add the consumer that ``subscribe`` created to its subscription, and serve it."""
        handle.subscription.join(handle.consumer)
        self.wake(handle)

    def close(self, handle: ConsumerHandle) -> None:
        """Remove a consumer; its in-flight messages are ready for other consumers at once."""
        handle.subscription.leave(handle.consumer, self._clock.now_ms())
        self.wake(handle)
        self._on_change(handle.topic, handle.subscription)

    def wake(self, handle: ConsumerHandle) -> None:
        """Wake the pump, because the consumer may get more messages."""
        self._wake(handle.topic, handle.subscription)

    # -- acknowledgements ------------------------------------------------------

    def acknowledge(
        self, handle: ConsumerHandle, offsets: Int64s, done: Callable[[int], None] | None
    ) -> None:
        """Acknowledge messages; they are not delivered again to this subscription.

        Args:
          done: called with the number of newly acknowledged messages when they are durable.

        Raises:
          StorageReadOnly: if the database accepts no writes; the client must send them again.
          StorageUnavailable: if too many acknowledgements wait for the database; the client must
            send them again.
        """
        self.acknowledge_in(handle.topic, handle.subscription, offsets, done)

    def acknowledge_in(
        self,
        topic: Topic,
        subscription: Subscription,
        offsets: Int64s,
        done: Callable[[int], None] | None,
    ) -> None:
        """Acknowledge messages of a subscription as ``acknowledge`` does, for no open consumer."""
        self._check_acks(topic, max(len(offsets), 1))
        subscription.acknowledge(offsets, done, at_ms=self._clock.now_ms())
        self._wake(topic, subscription)

    def negative_acknowledge(
        self,
        handle: ConsumerHandle,
        offsets: Int64s,
        delay_ms: int | None,
        reason: Reason = "nack",
        detail: str = "",
    ) -> int:
        """Give failed messages back, to be retried; return how many were in flight to the consumer.

        Args:
          delay_ms: the wait before the retry; None for the consumer's back-off.
          reason: "nack", or "rejected" for messages that become dead letters at once.
          detail: why the consumer rejects them; "" if it does not say.
        """
        count = handle.subscription.negative_acknowledge(
            handle.consumer, offsets, delay_ms, self._clock.now_ms(), reason, detail
        )
        self.wake(handle)
        self._on_change(handle.topic, handle.subscription)
        return count

    def extend(self, handle: ConsumerHandle, offsets: Int64s, wait_ms: int) -> int:
        """Move the ack deadlines of messages to ``wait_ms`` from now.

        Returns how many of the messages are in flight to the consumer.
        """
        return handle.subscription.extend(handle.consumer, offsets, wait_ms, self._clock.now_ms())

    def release(self, handle: ConsumerHandle, offsets: Int64s, delay_ms: int) -> int:
        """Give back messages that the consumer did not try, without counting an attempt.

        Returns how many of the messages were in flight to the consumer.
        """
        count = handle.subscription.release(
            handle.consumer, offsets, delay_ms, self._clock.now_ms()
        )
        self.wake(handle)
        self._on_change(handle.topic, handle.subscription)
        return count

    # -- deleting --------------------------------------------------------------

    async def delete(self, topic: Topic, name: str) -> None:
        """Delete a subscription, and close its consumers with an error. Raises ``NotFound``."""
        await self._registry.delete_subscription(topic, name)
        subscription = topic.subscription(name)
        if subscription is not None:
            gone = NotFound(f"the subscription {name} of {topic.name.full} was deleted")
            self.dismiss(topic, subscription, gone)

    def dismiss(self, topic: Topic, subscription: Subscription, error: EscapementError) -> None:
        """Stop serving a deleted subscription, and close its consumers with ``error``."""
        topic.replace_keys.purge(self._clock.now_ms())
        topic.remove(subscription.record.name)
        self._activation.subscriptions.pop(subscription.record.id, None)
        for consumer in list(subscription.consumers):
            consumer.closed = True
            subscription.consumers.remove(consumer)
            consumer.outlet.consumer_closed(consumer.wire_id, error)
