"""The administrative operations (*verbs*) on subscriptions: create, update, seek and others."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final, TypedDict

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.figures import SubscriptionFigures, figures
from escapement.broker.admin.result import Deleted, Fields
from escapement.broker.admin.verb import MAX_ROWS, Verb, topic_of
from escapement.broker.broker import Broker
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.due_counts import DueCounts
from escapement.errors import Conflict
from escapement.names import SUBSCRIPTION_KINDS, SubscriptionKind
from escapement.position import Position
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.catalog.policy import SubscriptionPolicy


class SubscriptionHead(TypedDict):
    """What a subscription is, without its policy."""

    topic: str
    subscription: str
    kind: SubscriptionKind
    created_at_ms: int


SubscriptionSettings = Annotated[dict[str, Plain], Fields(SubscriptionHead, SubscriptionPolicy)]


class CreatedSubscription(TypedDict):
    """The names of a new subscription and its topic."""

    topic: str
    subscription: str


class Sought(TypedDict):
    """The position from which a subscription continues."""

    topic: str
    subscription: str
    position: str


class CountedSubscription(SubscriptionFigures):
    """A subscription with its due and scheduled messages; ``exact`` is false for estimates."""

    due: int
    scheduled: int
    exact: bool


async def _list_subscriptions(broker: Broker, given: Arguments) -> list[CountedSubscription]:
    topic = topic_of(broker, given)
    given.end()
    counted = await broker.services.due_counter.count(topic)
    async with broker.answering:
        return [
            _counted(figures(topic, one), counted[one.record.name])
            for one in islice(topic.subscriptions(), MAX_ROWS)
            if one.record.name in counted  # not created meanwhile
        ]


def _counted(row: SubscriptionFigures, counts: DueCounts) -> CountedSubscription:
    return {**row, "due": counts.due, "scheduled": counts.scheduled, "exact": counts.exact}


async def _get_subscription(broker: Broker, given: Arguments) -> SubscriptionSettings:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    given.end()
    return _subscription(topic, broker.registry.subscription_record(topic, name))


async def _update_subscription(broker: Broker, given: Arguments) -> SubscriptionSettings:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    changes = given.changes("policy")
    given.end()
    return _subscription(topic, await broker.registry.update_subscription(topic, name, changes))


async def _create_subscription(broker: Broker, given: Arguments) -> CreatedSubscription:
    name = given.topic_name("topic")
    subscription = given.text("subscription")
    kind = given.choice("kind", SUBSCRIPTION_KINDS)
    position = Position.parse(given.optional_text("position") or "latest")
    policy = SubscriptionPolicy().updated(given.map("policy"))
    given.end()
    topic = await broker.registry.ensure_topic(name)
    await broker.consuming.create(topic, subscription, kind, position, policy)
    return {"topic": name.full, "subscription": subscription}


async def _seek_subscription(broker: Broker, given: Arguments) -> Sought:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    position = Position.parse(given.text("position"))
    given.end()
    await broker.consuming.seek(topic, name, position)
    return {"topic": topic.name.full, "subscription": name, "position": str(position)}


async def _delete_subscription(broker: Broker, given: Arguments) -> Deleted:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    force = given.flag("force")
    given.end()
    if not force and topic.find(name).consumers:
        raise Conflict(f"{name} has consumers; use --force to delete it anyway")
    await broker.consuming.delete(topic, name)
    return {"deleted": name}


def _subscription(topic: Topic, record: SubscriptionRecord) -> SubscriptionSettings:
    head: SubscriptionHead = {
        "topic": topic.name.full,
        "subscription": record.name,
        "kind": record.kind,
        "created_at_ms": record.created_at_ms,
    }
    return {**head, **record.policy.plain()}


VERBS: Final[dict[str, Verb]] = {
    "subscriptions.list": _list_subscriptions,
    "subscriptions.get": _get_subscription,
    "subscriptions.update": _update_subscription,
    "subscriptions.create": _create_subscription,
    "subscriptions.seek": _seek_subscription,
    "subscriptions.delete": _delete_subscription,
}
