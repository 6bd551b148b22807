"""Everything that has a name: namespaces, topics, subscriptions, producers.

Records of all of them are in memory; a :class:`~escapement.broker.topic.Topic`, which
has a state that moves, is made only for a topic that somebody uses or that has messages
to deliver. An idle topic is a record of some hundred bytes, so there may be many.

Names are found here; what exists is changed in the database first, through
``transact``, and here afterwards. Of several that want the same new name at once, one
creates it and the others wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import trio

from escapement.broker.producer import Producer
from escapement.broker.topic import Topic
from escapement.clock import Clock
from escapement.durations import format as duration_text
from escapement.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, ProducerFenced
from escapement.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, NamespaceName, TopicName
from escapement.storage import catalog, producers
from escapement.storage.catalog import Namespace, SubscriptionRecord, TopicRecord
from escapement.storage.engine.base import Connection
from escapement.storage.policy import SubscriptionPolicy
from escapement.storage.producers import ProducerRecord

T = TypeVar("T")

MIN_TICK_MS = 1
MAX_TICK_MS = 3_600_000
# Where topics are that are named by one word.
DEFAULT_NAME = NamespaceName(DEFAULT_TENANT, DEFAULT_NAMESPACE)
# A fortnight, the longest duration unit, five times over: windows stay plannable.
MAX_GRANULARITY_MS = 10 * 7 * 86_400_000


class Transact(Protocol):
    """Runs a function in a transaction and returns its value once that is durable."""

    async def __call__(self, statement: Callable[[Connection], T], *, topic_id: int = 0) -> T: ...


MakeTopic = Callable[[TopicRecord, TopicName, Namespace, Iterable[SubscriptionRecord]], Topic]


class Registry:
    """See the module's docstring.

    Args:
      make_topic: builds the runtime of a topic that is used for the first time.
      auto_create: whether topics come into being when they are first used.
    """

    def __init__(
        self, clock: Clock, transact: Transact, make_topic: MakeTopic, auto_create: bool
    ) -> None:
        self._clock = clock
        self._transact = transact
        self._make_topic = make_topic
        self._auto_create = auto_create
        self.namespaces: dict[str, Namespace] = {}
        self.topics: dict[str, TopicRecord] = {}
        self.active: dict[int, Topic] = {}
        self._names: dict[int, str] = {}  # full names by topic id
        self._namespace_of: dict[int, str] = {}  # full names by namespace id
        self._subscriptions: dict[int, dict[str, SubscriptionRecord]] = {}
        self._producers: dict[int, dict[str, ProducerRecord]] = {}
        self._creating: dict[str, trio.Lock] = {}

    def load(
        self,
        namespaces: Iterable[Namespace],
        topics: Iterable[TopicRecord],
        subscriptions: Iterable[SubscriptionRecord],
        producer_records: Iterable[ProducerRecord],
    ) -> None:
        """Take what the database has, at start."""
        for namespace in namespaces:
            self._enter_namespace(namespace)
        for topic in topics:
            self._enter_topic(topic)
        for subscription in subscriptions:
            if subscription.topic_id not in self._names:
                continue  # its topic was deleted, and it is being freed
            by_name = self._subscriptions.setdefault(subscription.topic_id, {})
            by_name[subscription.name] = subscription
        for producer in producer_records:
            self._producers.setdefault(producer.topic_id, {})[producer.name] = producer

    def _enter_namespace(self, namespace: Namespace) -> None:
        full = f"{namespace.tenant}/{namespace.name}"
        self.namespaces[full] = namespace
        self._namespace_of[namespace.id] = full

    def _enter_topic(self, record: TopicRecord) -> None:
        full = f"{self._namespace_of[record.namespace_id]}/{record.name}"
        self.topics[full] = record
        self._names[record.id] = full

    # -- finding ------------------------------------------------------------------

    def namespace(self, name: NamespaceName) -> Namespace:
        """Raises ``NotFound``."""
        found = self.namespaces.get(name.full)
        if found is None:
            raise NotFound(f"there is no namespace {name.full}; create it first")
        return found

    def topic_record(self, name: TopicName) -> TopicRecord:
        """What is stored of a topic. Raises ``NotFound``."""
        record = self.topics.get(name.full)
        if record is None:
            raise NotFound(f"there is no topic {name.full}")
        return record

    def topic(self, name: TopicName) -> Topic:
        """The topic's runtime. Raises ``NotFound``."""
        return self.activate(self.topic_record(name).id)

    def activate(self, topic_id: int) -> Topic:
        """The runtime of a topic that exists, made now if it has none."""
        topic = self.active.get(topic_id)
        if topic is None:
            name = TopicName.parse(self._names[topic_id])
            record = self.topics[name.full]
            topic = self._make_topic(
                record,
                name,
                self.namespaces[name.namespace_full],
                self._subscriptions.get(topic_id, {}).values(),
            )
            for known in self._producers.pop(topic_id, {}).values():
                topic.producers[known.name] = Producer(
                    known.id, known.name, known.epoch, known.last_sequence, known.last_offset
                )
            self.active[topic_id] = topic
        return topic

    def exists(self, topic_id: int) -> bool:
        """Whether a topic of this id exists."""
        return topic_id in self._names

    def has_shared(self, topic_id: int) -> bool:
        """Whether the topic has a shared subscription."""
        records = self._subscriptions.get(topic_id, {}).values()
        return any(record.kind == "shared" for record in records)

    def subscription_records(self, topic_id: int) -> list[SubscriptionRecord]:
        """All subscriptions of a topic."""
        return list(self._subscriptions.get(topic_id, {}).values())

    def all_subscriptions(self) -> Iterable[SubscriptionRecord]:
        """Every subscription there is."""
        for by_name in self._subscriptions.values():
            yield from by_name.values()

    # -- namespaces ---------------------------------------------------------------

    async def create_namespace(self, name: NamespaceName) -> Namespace:
        """Raises ``AlreadyExists``."""
        async with self._alone(name.full):
            if name.full in self.namespaces:
                raise AlreadyExists(f"the namespace {name.full} exists already")
            now_ms = self._clock.now_ms()
            namespace = await self._durably(
                lambda connection: catalog.create_namespace(
                    connection, name.tenant, name.namespace, now_ms
                )
            )
            self._enter_namespace(namespace)
            return namespace

    async def ensure_namespace(self, name: NamespaceName) -> Namespace:
        """The namespace, created with the defaults if there is none."""
        found = self.namespaces.get(name.full)
        if found is not None:
            return found
        try:
            return await self.create_namespace(name)
        except AlreadyExists:
            return self.namespaces[name.full]

    async def set_delays(
        self,
        name: NamespaceName,
        *,
        enabled: bool,
        granularity_ms: int | None = None,
        tick_ms: int | None = None,
    ) -> Namespace:
        """Change how a namespace treats delays; takes effect at once. P2, P4.

        The default namespace is there even before anybody used it.

        Raises:
          NotFound: if there is no such namespace.
          InvalidRequest: if granularity and tick do not fit each other.
        """
        if name == DEFAULT_NAME:
            await self.ensure_namespace(name)
        async with self._alone(name.full):
            old = self.namespace(name)
            new = replace(
                old,
                delays_enabled=enabled,
                granularity_ms=granularity_ms or old.granularity_ms,
                tick_ms=tick_ms or old.tick_ms,
            )
            if not MIN_TICK_MS <= new.tick_ms <= min(MAX_TICK_MS, new.granularity_ms):
                raise InvalidRequest(
                    f"a tick of {duration_text(new.tick_ms)} does not fit: it must be between "
                    "1ms and 1h, and no longer than the granularity of "
                    f"{duration_text(new.granularity_ms)}"
                )
            if new.granularity_ms > MAX_GRANULARITY_MS:
                raise InvalidRequest("the time partition granularity must not exceed 10 weeks")
            await self._change_namespace(name, new)
            return new

    async def update_namespace(self, name: NamespaceName, changes: Mapping[str, Any]) -> Namespace:
        """Change a namespace's policy; takes effect at once.

        Raises:
          NotFound: if there is no such namespace.
          InvalidRequest: if a change is none; nothing is changed then.
        """
        if name == DEFAULT_NAME:
            await self.ensure_namespace(name)
        async with self._alone(name.full):
            old = self.namespace(name)
            new = replace(old, policy=old.policy.updated(changes))
            await self._change_namespace(name, new)
            return new

    async def _change_namespace(self, name: NamespaceName, new: Namespace) -> None:
        await self._durably(lambda connection: catalog.update_namespace(connection, new))
        self.namespaces[name.full] = new
        now_ms = self._clock.now_ms()
        for topic in self.active.values():
            if topic.namespace.id == new.id:
                topic.set_namespace(new, now_ms)

    async def delete_namespace(self, name: NamespaceName) -> None:
        """Raises ``NotFound``, or ``Conflict`` while it has topics."""
        async with self._alone(name.full):
            namespace = self.namespace(name)
            if any(record.namespace_id == namespace.id for record in self.topics.values()):
                raise Conflict(f"the namespace {name.full} still has topics: delete them first")
            await self._durably(lambda connection: catalog.delete_namespace(connection, namespace))
            del self.namespaces[name.full]

    # -- topics ---------------------------------------------------------------------

    async def ensure_topic(self, name: TopicName) -> Topic:
        """The topic; created on first use where that is allowed. Raises ``NotFound``."""
        if name.full not in self.topics:
            if not self._auto_create:
                raise NotFound(
                    f"there is no topic {name.full}, and this broker does not create topics "
                    "on first use"
                )
            with suppress(AlreadyExists):
                await self.create_topic(name)
        return self.topic(name)

    async def create_topic(self, name: TopicName) -> Topic:
        """Raises ``AlreadyExists``. Its namespace is created with it if need be."""
        namespace = await self.ensure_namespace(name.in_namespace)
        async with self._alone(name.full):
            if name.full in self.topics:
                raise AlreadyExists(f"the topic {name.full} exists already")
            now_ms = self._clock.now_ms()
            record = await self._durably(
                lambda connection: catalog.create_topic(connection, namespace.id, name.name, now_ms)
            )
            self._enter_topic(record)
            return self.activate(record.id)

    async def update_topic(self, name: TopicName, changes: Mapping[str, Any]) -> TopicRecord:
        """Change a topic's policy; takes effect at once. Raises as ``update_namespace``."""
        async with self._alone(name.full):
            old = self.topic_record(name)
            new = replace(old, policy=old.policy.updated(changes))
            await self._durably(
                lambda connection: catalog.update_topic(connection, new), topic_id=new.id
            )
            self.topics[name.full] = new
            if new.id in self.active:
                self.active[new.id].policy = new.policy
            return new

    async def delete_topic(self, name: TopicName) -> int:
        """Take a topic out of the catalog; returns its id. Raises ``NotFound``."""
        async with self._alone(name.full):
            record = self.topic_record(name)
            await self._durably(
                lambda connection: catalog.delete_topic(connection, record.id),
                topic_id=record.id,
            )
            del self.topics[name.full]
            del self._names[record.id]
            self._subscriptions.pop(record.id, None)
            self._producers.pop(record.id, None)
            self.active.pop(record.id, None)
            return record.id

    # -- subscriptions ----------------------------------------------------------------

    async def create_subscription(
        self,
        topic: Topic,
        name: str,
        kind: catalog.Kind,
        *,
        earliest: bool,
        policy: SubscriptionPolicy,
        serve: Callable[[SubscriptionRecord], None],
    ) -> SubscriptionRecord:
        """Make a subscription durable, then have it served.

        At latest it begins with what is published or comes due from now on; at earliest
        with everything, for which the log is read again up to here (``fill_until``).

        Raises:
          AlreadyExists: if the topic has one of this name.
        """
        async with self._alone(topic.name.full):
            self._check_there(topic)
            by_name = self._subscriptions.setdefault(topic.id, {})
            if name in by_name:
                raise AlreadyExists(f"{topic.name.full} has a subscription {name} already")
            now_ms = self._clock.now_ms()
            end = topic.next_offset
            rest: dict[str, Any] = {"start_offset": end, "start_due_ms": now_ms + 1}
            if earliest:
                fill = end if kind == "shared" else 0
                rest = {"start_offset": 0, "start_due_ms": 0, "fill_until": fill}
            topic.begin_subscribing()
            try:
                record = await self._durably(
                    lambda connection: catalog.create_subscription(
                        connection, topic.id, name, kind, now_ms, policy=policy, **rest
                    ),
                    topic_id=topic.id,
                )
                by_name[name] = record
                serve(record)
            finally:
                topic.subscribing -= 1
            return record

    def subscription_record(self, topic: Topic, name: str) -> SubscriptionRecord:
        """What is stored of a subscription, as it began. Raises ``NotFound``."""
        record = self._subscriptions.get(topic.id, {}).get(name)
        if record is None:
            raise NotFound(f"{topic.name.full} has no subscription {name}")
        return record

    async def update_subscription(
        self, topic: Topic, name: str, changes: Mapping[str, Any]
    ) -> SubscriptionRecord:
        """Change a subscription's policy; takes effect at once, also for its consumers.

        Raises as ``update_namespace``.
        """
        async with self._alone(topic.name.full):
            old = self.subscription_record(topic, name)
            new = replace(old, policy=old.policy.updated(changes))
            await self._durably(
                lambda connection: catalog.update_subscription(connection, new), topic_id=topic.id
            )
            self._subscriptions[topic.id][name] = new
            subscription = topic.subscription(name)
            if subscription is not None:
                subscription.set_policy(new.policy)
            return new

    async def delete_subscription(self, topic: Topic, name: str) -> None:
        """Raises ``NotFound``."""
        async with self._alone(topic.name.full):
            record = self.subscription_record(topic, name)
            await self._durably(
                lambda connection: catalog.delete_subscription(connection, record.id),
                topic_id=topic.id,
            )
            del self._subscriptions[topic.id][name]

    # -- producers ----------------------------------------------------------------------

    async def open_producer(
        self, topic: Topic, name: str, epoch: int, settled: Callable[[Producer], Awaitable[None]]
    ) -> tuple[Producer, int]:
        """The producer of a name, and the epoch under which it is held from now on.

        Args:
          epoch: -1 to take the name over, or the epoch under which it was held.
          settled: waits until nothing of the producer is under way.

        Raises:
          ProducerFenced: if the name has a newer epoch than the one given.
        """
        async with self._alone(f"{topic.name.full}\nproducer\n{name}"):
            producer = topic.producers.get(name)
            if producer is not None and epoch >= 0:
                if epoch != producer.epoch:
                    raise ProducerFenced(f"a newer producer named {name!r} has taken over")
                await settled(producer)
                return producer, epoch
            self._check_there(topic)
            now_ms = self._clock.now_ms()
            record = await self._durably(
                lambda connection: producers.open_producer(connection, topic.id, name, now_ms),
                topic_id=topic.id,
            )
            if producer is None:
                producer = Producer(
                    record.id, name, record.epoch, record.last_sequence, record.last_offset
                )
                topic.producers[name] = producer
            await settled(producer)
            return producer, record.epoch

    def forget_producers(self, ids: set[int]) -> list[int]:
        """Forget those of these producers that nobody holds; returns which they are."""
        forgotten = []
        for topic in self.active.values():
            for producer in list(topic.producers.values()):
                if producer.id in ids and producer.holder is None and not producer.pending:
                    del topic.producers[producer.name]
                    forgotten.append(producer.id)
        for by_name in self._producers.values():
            for record in list(by_name.values()):
                if record.id in ids:
                    del by_name[record.name]
                    forgotten.append(record.id)
        return forgotten

    # -- one at a time, whole --------------------------------------------------------------------

    def _check_there(self, topic: Topic) -> None:
        if self.active.get(topic.id) is not topic:
            raise NotFound(f"the topic {topic.name.full} was deleted")

    async def _durably(self, statement: Callable[[Connection], T], *, topic_id: int = 0) -> T:
        """Change the database; who is cancelled meanwhile is cancelled afterwards.

        What was made durable must be entered here too, or nobody would know of it until
        the next start. An outage ends the wait with an error, so it is never long.
        """
        with trio.CancelScope(shield=True):
            value: T = await self._transact(statement, topic_id=topic_id)
        return value

    @asynccontextmanager
    async def _alone(self, name: str) -> Any:
        """Of those that change the same thing, one after the other."""
        lock = self._creating.setdefault(name, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._creating.pop(name, None)
