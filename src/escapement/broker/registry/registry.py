"""The registry of named objects: topics and subscriptions, with namespaces and producers.

The *records* of all named objects are in memory: their ids, names and policies. An *active* topic
also has a *runtime*, a :class:`~escapement.broker.topic.topic.Topic` with its subscriptions. A
*passive* topic has none. It takes little memory, so there may be many passive topics
(broker/topic/passive_topics.py).

The registry finds objects by name. It changes them first in the database and then in memory
(:mod:`changes <escapement.broker.registry.changes>`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import trio

from escapement.broker.registry.bundle import Bundle
from escapement.broker.registry.changes import Changes, Transact
from escapement.broker.registry.namespaces import Namespaces
from escapement.broker.registry.producer_registry import ProducerRegistry
from escapement.broker.subscription.policy_checks import check_consumers, check_policy
from escapement.broker.subscription.start_position import beginning
from escapement.broker.topic.backlog_size import is_governed
from escapement.broker.topic.passive_topics import Remains
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import AlreadyExists, Busy, NotFound
from escapement.names import TopicName
from escapement.position import Position
from escapement.storage.bundles import catalog_changed
from escapement.storage.catalog import catalog
from escapement.storage.catalog.catalog import Namespace, SubscriptionRecord, TopicRecord
from escapement.storage.catalog.delay_policy import DelayPolicy
from escapement.storage.catalog.policy import SubscriptionPolicy, TopicPolicy
from escapement.storage.catalog.producers import ProducerRecord, producer_ids
from escapement.storage.engine.base import Connection
from escapement.storage.inbox import inbox

MakeTopic = Callable[[TopicRecord, TopicName, Namespace, Iterable[SubscriptionRecord]], Topic]


class Registry:
    """All named objects of a broker.

    Args:
      transact: runs a statement in a transaction, and returns when that is durable.
      make_topic: creates the runtime of a topic.
      on_active: called with a topic that became active.
      on_policy: called with a topic after a change of its policy, of its namespace's settings or of
        a subscription's policy. The topic may have work to do now, or other wake-up times.
      auto_create: whether topics are created at their first use.
      forgotten_until_ms: returns the due time up to which messages may have left the index.
      lease_epoch: the epoch of the lease that the broker works under.
      bundle: the bundle that the broker owns. The registry has the topics of no other one.
    """

    def __init__(
        self,
        clock: Clock,
        transact: Transact,
        make_topic: MakeTopic,
        on_active: Callable[[Topic], None],
        on_policy: Callable[[Topic], None],
        auto_create: bool,
        forgotten_until_ms: Callable[[], int],
        lease_epoch: int,
        bundle: Bundle,
    ) -> None:
        self.bundle = bundle
        self._clock = clock
        self._changes = Changes(transact)
        self._make_topic = make_topic
        self._on_active = on_active
        self._on_policy = on_policy
        self._auto_create = auto_create
        self._forgotten_until_ms = forgotten_until_ms
        self.namespaces = Namespaces(
            clock, self._changes, self._in_use, self._namespace_changed, bundle
        )
        self.producers = ProducerRegistry(
            clock, self._changes, self._check_there, producer_ids(lease_epoch, bundle.id)
        )
        self.topics: dict[str, TopicRecord] = {}
        self.active: dict[int, Topic] = {}
        self._names: dict[int, str] = {}  # full names by topic id
        # Records by topic id and subscription name.
        self._subscriptions: dict[int, dict[str, SubscriptionRecord]] = {}

    def load(
        self,
        namespaces: Iterable[Namespace],
        deleting_namespaces: Iterable[int],
        topics: Iterable[TopicRecord],
        subscriptions: Iterable[SubscriptionRecord],
        producers: Iterable[ProducerRecord],
    ) -> None:
        """Add the named objects that the database has, when the broker starts.

        Args:
          deleting_namespaces: the ids of namespaces that are being deleted with everything in them.
        """
        self.namespaces.load(namespaces, deleting_namespaces)
        for topic in topics:
            self._enter_topic(topic)
        for subscription in subscriptions:
            if subscription.topic_id not in self._names:
                continue  # its topic was deleted; its rows are freed in the background
            by_name = self._subscriptions.setdefault(subscription.topic_id, {})
            by_name[subscription.name] = subscription
        self.producers.load(producers)

    def _enter_topic(self, record: TopicRecord) -> None:
        full = f"{self.namespaces.full_name(record.namespace_id)}/{record.name}"
        self.topics[full] = record
        self._names[record.id] = full

    def enter(self, topic: TopicRecord, subscription: SubscriptionRecord | None) -> None:
        """Add a passive topic that was created durably, and its subscription if it has one."""
        self._enter_topic(topic)
        if subscription is not None:
            self._subscriptions[topic.id] = {subscription.name: subscription}

    def _in_use(self, namespace: Namespace) -> bool:
        return any(record.namespace_id == namespace.id for record in self.topics.values())

    async def _namespace_changed(self, namespace: Namespace) -> None:
        await self.activate_governed()
        now_ms = self._clock.now_ms()
        for topic in self.active.values():
            if topic.namespace.id == namespace.id:
                topic.set_namespace(namespace, now_ms)
                self._on_policy(topic)

    # -- finding ------------------------------------------------------------------

    def topic_record(self, name: TopicName) -> TopicRecord:
        """Return the record of a topic.

        Raises:
          NotFound: if the topic does not exist.
          WrongBundle: if the broker does not have it, and its name belongs to another bundle.
        """
        record = self.topics.get(name.full)
        if record is None:
            self.bundle.check_name(name.full)
            raise NotFound(
                f"there is no topic {name.full}; `escapement admin topics list` shows all topics"
            )
        return record

    def delays_of(self, topic: str, elsewhere: Callable[[TopicName], TopicPolicy]) -> DelayPolicy:
        """Return the delay policy of a topic by its full name, which need not exist. Any thread.

        Args:
          elsewhere: returns the policy of a topic that may be in another bundle.
        """
        name = TopicName.parse(topic)
        namespace = self.namespaces.get(name.in_namespace)
        if namespace is None:
            return DelayPolicy()
        record = self.topics.get(topic)
        if record is not None:
            own = record.policy
        else:
            own = TopicPolicy() if self.bundle.is_only else elsewhere(name)
        return DelayPolicy.of(name, own, namespace) or DelayPolicy()

    def topic(self, name: TopicName) -> Topic:
        """Return a topic's runtime; create it if the topic is passive. Raises ``NotFound``."""
        return self.activate(self.topic_record(name).id)

    def activate(self, topic_id: int) -> Topic:
        """Return the runtime of an existing topic; create it if the topic is passive."""
        topic = self.active.get(topic_id)
        if topic is None:
            name = TopicName.parse(self._names[topic_id])
            record = self.topics[name.full]
            topic = self._make_topic(
                record,
                name,
                self.namespaces.find(name.in_namespace),
                self._subscriptions.get(topic_id, {}).values(),
            )
            self.producers.enter(topic)
            self.active[topic_id] = topic
            self._on_active(topic)
        return topic

    def passivated(self, remains: Remains) -> None:
        """Update the records of a topic that became passive, with its subscriptions and producers.

        The caller has removed the topic from ``active``.
        """
        full = self._names[remains.topic_id]
        self.topics[full] = replace(self.topics[full], next_offset=remains.next_offset)
        for record in remains.records:
            self._subscriptions[remains.topic_id][record.name] = record
        self.producers.leave(remains.topic_id, remains.producers)

    async def activate_governed(self) -> None:
        """Activate the passive topics with a time to live or a quota, which act without clients."""
        for topic_id in [id for id in self._subscriptions if id not in self.active]:
            if topic_id in self._names and self._is_governed(topic_id):
                self.activate(topic_id)
                await trio.lowlevel.checkpoint()

    def _is_governed(self, topic_id: int) -> bool:
        return is_governed(self.record(topic_id).policy, self.namespace_of(topic_id).policy)

    def record(self, topic_id: int) -> TopicRecord:
        """Return the record of the existing topic with this id."""
        return self.topics[self._names[topic_id]]

    def full_name(self, topic_id: int) -> str:
        """Return the full name of the existing topic with this id."""
        return self._names[topic_id]

    def subscriptions_of(self, topic_id: int) -> Collection[SubscriptionRecord]:
        """Return the records of all subscriptions of a topic."""
        return self._subscriptions.get(topic_id, {}).values()

    def exists(self, topic_id: int) -> bool:
        """Return whether a topic with this id exists."""
        return topic_id in self._names

    def namespace_of(self, topic_id: int) -> Namespace:
        """Return the namespace of the existing topic with this id."""
        return self.namespaces.by_id(self.record(topic_id).namespace_id)

    def all_subscriptions(self) -> Iterable[SubscriptionRecord]:
        """Return the records of the subscriptions of all topics, active or passive."""
        for by_name in self._subscriptions.values():
            yield from by_name.values()

    # -- topics ---------------------------------------------------------------------

    async def ensure_topic(self, name: TopicName) -> Topic:
        """Return the topic; create it if it does not exist and the settings allow that.

        Raises:
          NotFound: if the topic does not exist and must not be created.
          WrongBundle: if it belongs to another bundle.
        """
        if name.full not in self.topics:
            if not self.bundle.is_only:
                await self._check_place(name)
            if not self._auto_create:
                raise NotFound(
                    f"there is no topic {name.full}; create it first, or start the broker with "
                    "--create-topics"
                )
            with suppress(AlreadyExists):
                await self.create_topic(name)
        return self.topic(name)

    async def _check_place(self, name: TopicName) -> None:
        """Raise ``WrongBundle`` if a topic exists in another bundle, or its name belongs there."""
        id, dialect = self.bundle.id, self.bundle.dialect
        await self._changes.durably(
            lambda connection: catalog.check_places(connection, dialect, [name], id)
        )

    async def create_topic(self, name: TopicName) -> Topic:
        """Create a topic in the broker's bundle, and its namespace if necessary.

        Raises:
          AlreadyExists: if the topic exists.
          Conflict: if its namespace is being deleted.
          WrongBundle: if it belongs to another bundle.
        """
        namespace = await self.namespaces.ensure(name.in_namespace)
        async with self._changes.alone(name.full):
            self.namespaces.check_open(namespace)
            if name.full in self.topics:
                raise AlreadyExists(f"topic {name.full} already exists")
            now_ms = self._clock.now_ms()
            bundle = self.bundle

            def create(connection: Connection) -> TopicRecord:
                catalog.open_namespace(connection, bundle.dialect, namespace.id)
                catalog.check_places(connection, bundle.dialect, [name], bundle.id)
                return catalog.create_topic(connection, namespace.id, name.name, now_ms, bundle.id)

            record = await self._changes.durably(create)
            self._enter_topic(record)
            return self.activate(record.id)

    async def update_topic(self, name: TopicName, changes: Mapping[str, Any]) -> TopicRecord:
        """Change a topic's policy; the change takes effect at once.

        Args:
          changes: the new values, by the names of the policy's fields.

        Raises:
          NotFound: if the topic does not exist.
          InvalidRequest: if a change is invalid; nothing has changed.
        """
        async with self._changes.alone(name.full):
            old = self.topic_record(name)
            new = replace(old, policy=old.policy.updated(changes))
            await self._changes.durably(
                lambda connection: catalog.update_topic(connection, new), topic_id=new.id
            )
            self.topics[name.full] = new
            if self._is_governed(new.id):
                self.activate(new.id)
            topic = self.active.get(new.id)
            if topic is not None:
                topic.set_policy(new.policy)
                self._on_policy(topic)
            return new

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its inbox target from the catalog.

        Raises:
          NotFound: if the topic was deleted, even if a new topic has its name.
        """
        full = topic.name.full
        async with self.alone(topic):

            def delete(connection: Connection) -> None:
                catalog.delete_topic(connection, topic.id)
                if self.bundle.is_misplaced(full):
                    catalog_changed(connection)  # the next topic of this name has another bundle
                inbox.close(connection, full, self.bundle.id)

            topic.deleting = True
            try:
                await self._changes.durably(delete, topic_id=topic.id)
            except BaseException:
                topic.deleting = False
                raise
            del self.topics[full]
            del self._names[topic.id]
            self._subscriptions.pop(topic.id, None)
            del self.active[topic.id]
            topic.dedup.drop()
            topic.replace_keys.drop()

    # -- subscriptions ----------------------------------------------------------------

    async def create_subscription(
        self,
        topic: Topic,
        name: str,
        kind: catalog.Kind,
        *,
        position: Position,
        policy: SubscriptionPolicy,
        serve: Callable[[SubscriptionRecord], None],
    ) -> None:
        """Create a subscription in the database, then serve it.

        Args:
          position: where the subscription begins.
          serve: creates the runtime of the subscription from its record.

        Raises:
          AlreadyExists: if the topic has a subscription of this name.
          InvalidRequest: if the position lies past the log's end, or the policy is invalid.
        """
        async with self.alone(topic):
            check_policy(topic.name, name, kind, policy, policy.names())
            if name in self._subscriptions.get(topic.id, {}):
                raise AlreadyExists(f"{topic.name.full} already has a subscription {name}")
            now_ms = self._clock.now_ms()
            until_ms = self._forgotten_until_ms()
            begins = beginning(kind, position, topic.next_offset, now_ms, until_ms)
            await self._begin(
                topic,
                lambda connection: catalog.create_subscription(
                    connection, topic.id, name, kind, now_ms, begins, policy=policy
                ),
                serve,
            )

    async def seek_subscription(
        self,
        topic: Topic,
        name: str,
        kind: catalog.Kind,
        position: Position,
        serve: Callable[[SubscriptionRecord], None],
    ) -> None:
        """Replace a subscription by a new one of the same name that begins at ``position``.

        Args:
          kind: the kind that the caller saw; a subscription of another kind is a later one.
          serve: replaces the runtime of the subscription, given the new record.

        Raises:
          NotFound: if the topic has no subscription of this name and kind.
          InvalidRequest: if the position lies past the log's end.
        """
        async with self.alone(topic):
            old = self.subscription_record(topic, name)
            if old.kind != kind:  # a later subscription of that name; the seek is not for it
                raise NotFound(f"the subscription {name} of {topic.name.full} was deleted")
            now_ms = self._clock.now_ms()
            until_ms = self._forgotten_until_ms()
            begins = beginning(old.kind, position, topic.next_offset, now_ms, until_ms)
            await self._begin(
                topic,
                lambda connection: catalog.replace_subscription(connection, old, now_ms, begins),
                serve,
            )

    async def _begin(
        self,
        topic: Topic,
        statement: Callable[[Connection], SubscriptionRecord],
        serve: Callable[[SubscriptionRecord], None],
    ) -> None:
        """Make a subscription's record durable, then serve it.

        Meanwhile the index and the log keep all messages of the topic: the subscription may want
        them.
        """
        topic.retention.begin_subscribing()
        try:
            record = await self._changes.durably(statement, topic_id=topic.id)
            self._subscriptions.setdefault(topic.id, {})[record.name] = record
            serve(record)
        finally:
            topic.retention.end_subscribing()

    def subscription_record(self, topic: Topic, name: str) -> SubscriptionRecord:
        """Return the record of the subscription of this name. Raises ``NotFound``."""
        record = self._subscriptions.get(topic.id, {}).get(name)
        if record is None:
            raise NotFound(
                f"{topic.name.full} has no subscription {name}; `escapement admin subscriptions "
                f"list {topic.name.full}` shows all subscriptions"
            )
        return record

    async def update_subscription(
        self, topic: Topic, name: str, changes: Mapping[str, Any]
    ) -> SubscriptionRecord:
        """Change a subscription's policy; the change takes effect at once, for its consumers too.

        Args:
          changes: the new values, by the names of the policy's fields.

        Raises:
          NotFound: if the topic has no subscription of this name.
          InvalidRequest: if a change is invalid; nothing has changed.
          Conflict: if the change would shorten the ack wait of a consumer; nothing has changed.
        """
        async with self._changes.alone(topic.name.full):
            old = self.subscription_record(topic, name)
            new = replace(old, policy=old.policy.updated(changes))
            check_policy(topic.name, name, old.kind, new.policy, changes)
            subscription = topic.subscription(name)
            if subscription is not None:
                consumers = subscription.consumers
                check_consumers(topic.name, name, consumers, old.policy, new.policy)
            await self._changes.durably(
                lambda connection: catalog.update_subscription(connection, new), topic_id=topic.id
            )
            self._subscriptions[topic.id][name] = new
            topic.set_subscription_policy(name, new.policy, self._clock.now_ms())
            self._on_policy(topic)
            return new

    async def delete_subscription(self, topic: Topic, name: str) -> None:
        """Delete the subscription of this name.

        Raises:
          NotFound: if it does not exist, or another request deletes it first, even if a new
            subscription has its name then.
        """
        meant = self.subscription_record(topic, name)
        async with self._changes.alone(topic.name.full):
            record = self.subscription_record(topic, name)
            if record.origin_id != meant.origin_id:  # a seek replaces the record but keeps this id
                raise NotFound(f"the subscription {name} of {topic.name.full} was deleted")
            await self._changes.durably(
                lambda connection: catalog.delete_subscription(connection, record.id),
                topic_id=topic.id,
            )
            del self._subscriptions[topic.id][name]

    @asynccontextmanager
    async def alone(self, topic: Topic) -> AsyncIterator[None]:
        """Hold the topic's lock, so that no request deletes it or changes its subscriptions.

        Raises:
          NotFound: if the topic was deleted.
        """
        async with self._changes.alone(topic.name.full):
            self._check_there(topic)
            yield

    def check_open(self, topic: Topic) -> None:
        """Raise ``NotFound`` if the topic was deleted, ``Busy`` while it is being deleted."""
        self._check_there(topic)
        if topic.deleting:
            raise Busy(f"topic {topic.name.full} is being deleted; try again")

    def _check_there(self, topic: Topic) -> None:
        if self.active.get(topic.id) is not topic:
            raise NotFound(f"the topic {topic.name.full} was deleted")
