"""The administrative operations (*verbs*) on topics: list, create, update, stats and others."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final, TypedDict

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.figures import SubscriptionFigures, figures
from escapement.broker.admin.result import Deleted, Fields
from escapement.broker.admin.verb import MAX_ROWS, Verb, beginning_of, topic_of
from escapement.broker.broker import Broker
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.topic import Topic
from escapement.errors import Conflict
from escapement.names import TopicName, is_anonymous
from escapement.storage.catalog.catalog import TopicRecord
from escapement.storage.catalog.policy import TopicPolicy


class Topics(TypedDict):
    """The names of topics; ``total`` counts also those beyond the limit of the listing."""

    topics: list[str]
    total: int


class TopicHead(TypedDict):
    """What a topic is, without its policy."""

    topic: str
    created_at_ms: int


TopicSettings = Annotated[dict[str, Plain], Fields(TopicHead, TopicPolicy)]


class ProducerFigures(TypedDict):
    """The state of a producer."""

    name: str
    epoch: int
    last_sequence: int
    connected: bool


class TopicStats(TypedDict):
    """The state and the counters of a topic."""

    topic: str
    next_offset: int
    published: int
    index_entries: int
    wheel_entries: int
    cancelled: int
    archive_awaited_ms: int
    producers: list[ProducerFigures]
    subscriptions: list[SubscriptionFigures]


class CreatedTopic(TypedDict):
    """The full name of a new topic."""

    topic: str


class CreatedTopics(TypedDict):
    """How many topics are new, and how many existed."""

    created: int
    existed: int


async def _list_topics(broker: Broker, given: Arguments) -> Topics:
    within = given.optional_text("namespace")
    given.end()
    seen = given.caller.coverage("peek")
    prefix = beginning_of(broker, within, seen)
    async with broker.answering:
        names = sorted(seen.among(n for n in broker.registry.topics if n.startswith(prefix)))
        return {"topics": names[:MAX_ROWS], "total": len(names)}


async def _get_topic(broker: Broker, given: Arguments) -> TopicSettings:
    name = given.topic_name("topic")
    given.end()
    return _topic(name, broker.registry.topic_record(name))


async def _update_topic(broker: Broker, given: Arguments) -> TopicSettings:
    name = given.topic_name("topic")
    changes = given.changes("policy")
    given.end()
    return _topic(name, await broker.registry.update_topic(name, changes))


async def _topic_stats(broker: Broker, given: Arguments) -> TopicStats:
    async with broker.answering:
        topic = topic_of(broker, given)
        given.end()
        since_ms = topic.archive_awaited_since_ms
        return {
            "topic": topic.name.full,
            "next_offset": topic.next_offset,
            "published": topic.published,
            "index_entries": broker.index.count(topic.id),
            "wheel_entries": topic.wheel_count,
            "cancelled": len(topic.amendments.cancelled),
            "archive_awaited_ms": broker.clock.now_ms() - since_ms if since_ms else 0,
            "producers": [
                {
                    "name": producer.name,
                    "epoch": producer.epoch,
                    "last_sequence": producer.last_sequence,
                    "connected": producer.holder is not None,
                }
                for producer in _worth_showing(topic)[:MAX_ROWS]
            ],
            "subscriptions": [
                figures(topic, one) for one in islice(topic.subscriptions(), MAX_ROWS)
            ],
        }


def _worth_showing(topic: Topic) -> list[Producer]:
    """Return the producers of a topic that are connected, or whose name was not generated."""
    return [
        producer
        for producer in topic.producers.values()
        if producer.holder is not None or not is_anonymous(producer.name)
    ]


async def _create_topic(broker: Broker, given: Arguments) -> CreatedTopic:
    name = given.topic_name("topic")
    given.end()
    await broker.registry.create_topic(name)
    return {"topic": name.full}


async def _create_topics(broker: Broker, given: Arguments) -> CreatedTopics:
    texts = given.texts("topics", MAX_ROWS)
    subscription = given.optional_text("subscription")
    given.end()
    names = [TopicName.parse(text) for text in texts]
    created = await broker.services.topic_batches.create(names, subscription)
    return {"created": len(created), "existed": len(set(names)) - len(created)}


async def _delete_topic(broker: Broker, given: Arguments) -> Deleted:
    name = given.topic_name("topic")
    force = given.flag("force")
    given.end()
    topic = broker.registry.topic(name)
    if not force and any(subscription.consumers for subscription in topic.subscriptions()):
        raise Conflict(f"{name.full} has consumers; use --force to delete it anyway")
    await broker.delete_topic(name)
    return {"deleted": name.full}


def _topic(name: TopicName, record: TopicRecord) -> TopicSettings:
    head: TopicHead = {"topic": name.full, "created_at_ms": record.created_at_ms}
    return {**head, **record.policy.plain()}


VERBS: Final[dict[str, Verb]] = {
    "topics.list": _list_topics,
    "topics.get": _get_topic,
    "topics.update": _update_topic,
    "topics.stats": _topic_stats,
    "topics.create": _create_topic,
    "topics.create_many": _create_topics,
    "topics.delete": _delete_topic,
}
