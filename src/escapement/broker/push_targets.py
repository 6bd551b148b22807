"""The push targets of the subscriptions of a broker: created, changed, listed and deleted.

A push target has the URL to which `escapement push` posts the messages of a subscription. That
process is an ordinary consumer, so the broker only stores the targets. Each request for them reads
the database: they are not kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from escapement.broker.registry.changes import Changes, Read
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.policy_checks import check_ack_wait
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.endpoint import Endpoint
from escapement.errors import InvalidRequest, LimitExceeded, NotFound
from escapement.event_log import EventLog
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.catalog.push_targets import (
    PushPolicy,
    PushTarget,
    delete_push_target,
    find_push_target,
    insert_push_target,
    new_secret,
    read_push_targets,
    update_push_target,
)
from escapement.storage.engine.base import Connection

_log = EventLog(__name__)


class NamedTarget(NamedTuple):
    """A push target, and the names of its topic and subscription."""

    topic: str
    subscription: str
    target: PushTarget


class PushTargets:
    """The push targets of one broker.

    Args:
      changes: makes changes durable.
      read: reads the database, beside group commits.
      most: the most targets. Each is a consumer of `escapement push`.
    """

    def __init__(
        self, registry: Registry, changes: Changes, read: Read, clock: Clock, most: int
    ) -> None:
        self._registry = registry
        self._changes = changes
        self._read = read
        self._clock = clock
        self._most = most

    async def create(self, topic: Topic, name: str, settings: Mapping[str, Any]) -> NamedTarget:
        """Create the target of a subscription, with a new secret.

        Raises:
          NotFound: if the topic has no subscription of this name.
          AlreadyExists: if the subscription has a target.
          InvalidRequest: if a setting is not valid, or the subscription is not shared.
          LimitExceeded: if there are too many targets.
        """
        policy = PushPolicy().updated(settings)
        bundle_id = self._registry.bundle.id
        async with self._registry.alone(topic):
            record = self._registry.subscription_record(topic, name)
            made = PushTarget(
                record.origin_id,
                topic.id,
                policy,
                new_secret(),
                created_at_ms=self._clock.now_ms(),
            )
            _check(topic, record, made)

            def insert(connection: Connection) -> None:
                count = len(read_push_targets(connection, bundle_id))
                if count >= self._most:
                    raise LimitExceeded(f"There are {count} push targets, which is the maximum.")
                insert_push_target(connection, made)

            await self._changes.durably(insert)
        return self._changed(topic, name, "created", made)

    async def update(self, topic: Topic, name: str, changes: Mapping[str, Any]) -> NamedTarget:
        """Change settings of a target. Raises ``NotFound``, or ``InvalidRequest``."""
        return await self._change(
            topic, name, "updated", lambda old: replace(old, policy=old.policy.updated(changes))
        )

    async def rotate(self, topic: Topic, name: str, keep_ms: int) -> NamedTarget:
        """Give a target a new secret. The present one also signs for ``keep_ms``, and no other."""
        until_ms = self._clock.now_ms() + keep_ms
        return await self._change(topic, name, "rotated", lambda old: old.rotated(until_ms))

    async def delete(self, topic: Topic, name: str) -> None:
        """Delete the target of a subscription. Raises ``NotFound``."""
        async with self._registry.alone(topic):
            record = self._registry.subscription_record(topic, name)
            old = await self._changes.durably(lambda connection: _take(connection, topic, record))
        self._changed(topic, name, "deleted", old)

    async def find(self, topic: Topic, name: str) -> NamedTarget:
        """Return the target of a subscription. Raises ``NotFound``."""
        record = self._registry.subscription_record(topic, name)
        found = await self._read(lambda connection: _find(connection, topic, record))
        return NamedTarget(topic.name.full, name, found)

    async def all(self) -> list[NamedTarget]:
        """Return all targets, sorted by topic and subscription."""
        bundle_id = self._registry.bundle.id
        stored = await self._read(lambda connection: read_push_targets(connection, bundle_id))
        found = []
        for target in stored:
            names = [
                record.name
                for record in self._registry.subscriptions_of(target.topic_id)
                if record.origin_id == target.origin_id
            ]
            # The subscription may have been deleted since the read.
            if names and self._registry.exists(target.topic_id):
                topic = self._registry.full_name(target.topic_id)
                found.append(NamedTarget(topic, names[0], target))
        return sorted(found, key=lambda one: one[:2])

    async def _change(
        self, topic: Topic, name: str, action: str, change: Callable[[PushTarget], PushTarget]
    ) -> NamedTarget:
        async with self._registry.alone(topic):
            record = self._registry.subscription_record(topic, name)

            def store(connection: Connection) -> PushTarget:
                new = change(_find(connection, topic, record))
                _check(topic, record, new)
                update_push_target(connection, new)
                return new

            new = await self._changes.durably(store)
        return self._changed(topic, name, action, new)

    def _changed(self, topic: Topic, name: str, action: str, target: PushTarget) -> NamedTarget:
        _log.info(
            "push.target_changed",
            "the push target of %s %s was %s: %s",
            topic.name.full,
            name,
            action,
            Endpoint.parse(target.policy.url).host,  # the rest of a URL may be a secret
            topic=topic.name.full,
            subscription=name,
            action=action,
        )
        return NamedTarget(topic.name.full, name, target)


def _find(connection: Connection, topic: Topic, record: SubscriptionRecord) -> PushTarget:
    found = find_push_target(connection, record.origin_id)
    if found is None:
        raise NotFound(
            f"The subscription {record.name} of {topic.name.full} has no push target; "
            "`escapement admin push list` shows all."
        )
    return found


def _take(connection: Connection, topic: Topic, record: SubscriptionRecord) -> PushTarget:
    found = _find(connection, topic, record)
    delete_push_target(connection, record.origin_id)
    return found


def _check(topic: Topic, record: SubscriptionRecord, target: PushTarget) -> None:
    if record.kind != "shared":
        raise InvalidRequest(
            f"Only shared subscriptions can have a push target; {record.name} is {record.kind}. "
            "To keep an order, use a shared subscription with --order key."
        )
    check_ack_wait(topic.name, record.name, target.ack_wait_ms, record.policy)
