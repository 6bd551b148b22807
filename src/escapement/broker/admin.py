"""The administrative verbs: what `escapement admin` and clients ask for by name.

A verb is a method named after it with arguments checked here; the result is plain values
(maps, lists, text, integers), fit for a table or for JSON. Times are Unix milliseconds and
durations milliseconds, as their names say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from escapement.broker.broker import Broker
from escapement.broker.shared import SharedSubscription
from escapement.broker.subscription import Subscription
from escapement.broker.topic import Topic
from escapement.errors import Conflict, InvalidRequest, NotFound
from escapement.names import NamespaceName, TopicName
from escapement.storage.catalog import Namespace

# Rows of one listing: it must fit a frame.
MAX_ROWS: Final = 10_000
# Messages shown by one peek, and how much of each payload.
MAX_PEEKED: Final = 1_000
PREVIEW_BYTES: Final = 512

Arguments = Mapping[str, Any]
Plain = Any


class Admin:
    """Carries out verbs on one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def carry_out(self, verb: str, arguments: Arguments) -> Plain:
        """Do what ``verb`` says.

        Raises:
          InvalidRequest: for an unknown verb, or arguments that do not fit it.
        """
        method = self._VERBS.get(verb)
        if method is None:
            raise InvalidRequest(f"there is no verb {verb!r}; known are {', '.join(self._VERBS)}")
        return await method(self, _Arguments(verb, arguments))

    # -- namespaces ----------------------------------------------------------------

    async def _list_namespaces(self, given: _Arguments) -> Plain:
        given.end()
        registry = self._broker.registry
        counts: dict[int, int] = {}
        for record in registry.topics.values():
            counts[record.namespace_id] = counts.get(record.namespace_id, 0) + 1
        return [
            _namespace(namespace) | {"topics": counts.get(namespace.id, 0)}
            for _, namespace in sorted(registry.namespaces.items())
        ]

    async def _get_namespace(self, given: _Arguments) -> Plain:
        name = NamespaceName.parse(given.text("namespace"))
        given.end()
        return _namespace(self._broker.registry.namespace(name))

    async def _create_namespace(self, given: _Arguments) -> Plain:
        name = NamespaceName.parse(given.text("namespace"))
        given.end()
        return _namespace(await self._broker.registry.create_namespace(name))

    async def _delete_namespace(self, given: _Arguments) -> Plain:
        name = NamespaceName.parse(given.text("namespace"))
        given.end()
        await self._broker.registry.delete_namespace(name)
        return {"deleted": name.full}

    async def _enable_delayed_message(self, given: _Arguments) -> Plain:
        name = NamespaceName.parse(given.text("namespace"))
        granularity_ms = given.optional_number("granularity_ms")
        tick_ms = given.optional_number("tick_ms")
        given.end()
        namespace = await self._broker.registry.set_delays(
            name, enabled=True, granularity_ms=granularity_ms, tick_ms=tick_ms
        )
        self._broker.policy_changed(namespace)
        return _namespace(namespace)

    async def _disable_delayed_message(self, given: _Arguments) -> Plain:
        name = NamespaceName.parse(given.text("namespace"))
        given.end()
        return _namespace(await self._broker.registry.set_delays(name, enabled=False))

    # -- topics ----------------------------------------------------------------------

    async def _list_topics(self, given: _Arguments) -> Plain:
        within = given.optional_text("namespace")
        given.end()
        prefix = ""
        if within is not None:
            prefix = NamespaceName.parse(within).full + "/"
            self._broker.registry.namespace(NamespaceName.parse(within))
        names = sorted(n for n in self._broker.registry.topics if n.startswith(prefix))
        return {"topics": names[:MAX_ROWS], "total": len(names)}

    async def _topic_stats(self, given: _Arguments) -> Plain:
        topic = self._broker.registry.topic(TopicName.parse(given.text("topic")))
        given.end()
        return {
            "topic": topic.name.full,
            "next_offset": topic.next_offset,
            "published": topic.published,
            "index_entries": self._broker.index.count(topic.id),
            "wheel_entries": topic.wheel_count,
            "producers": [
                {
                    "name": producer.name,
                    "epoch": producer.epoch,
                    "last_sequence": producer.last_sequence,
                    "connected": producer.holder is not None,
                }
                for producer in list(topic.producers.values())[:MAX_ROWS]
            ],
            "subscriptions": [_stats(topic, one) for one in topic.subscriptions()],
        }

    async def _peek_topic(self, given: _Arguments) -> Plain:
        topic = self._broker.registry.topic(TopicName.parse(given.text("topic")))
        count = given.optional_number("count") or 10
        given.end()
        peeked = await self._broker.peek(topic, min(count, MAX_PEEKED))
        now_ms = self._broker.clock.now_ms()
        rows = zip(
            peeked.due_ms.tolist(),
            peeked.offsets.tolist(),
            peeked.keys(),
            peeked.batch.payloads.to_list(),
            strict=True,
        )
        return [
            {
                "offset": offset,
                "due_at_ms": due_ms,
                "due_in_ms": max(due_ms - now_ms, 0),
                "key": key.decode("utf-8", "replace") or None,
                "size_bytes": len(payload),
                "payload": payload[:PREVIEW_BYTES],
            }
            for due_ms, offset, key, payload in rows
        ]

    async def _create_topic(self, given: _Arguments) -> Plain:
        name = TopicName.parse(given.text("topic"))
        given.end()
        await self._broker.registry.create_topic(name)
        return {"topic": name.full}

    async def _delete_topic(self, given: _Arguments) -> Plain:
        name = TopicName.parse(given.text("topic"))
        force = given.flag("force")
        given.end()
        topic = self._broker.registry.topic(name)
        if not force and any(subscription.consumers for subscription in topic.subscriptions()):
            raise Conflict(f"{name.full} has consumers; use --force to delete it all the same")
        await self._broker.delete_topic(name)
        return {"deleted": name.full}

    # -- subscriptions -----------------------------------------------------------------

    async def _list_subscriptions(self, given: _Arguments) -> Plain:
        topic = self._broker.registry.topic(TopicName.parse(given.text("topic")))
        given.end()
        return [_stats(topic, subscription) for subscription in topic.subscriptions()]

    async def _create_subscription(self, given: _Arguments) -> Plain:
        name = TopicName.parse(given.text("topic"))
        subscription = given.text("subscription")
        kind = given.choice("kind", ("shared", "exclusive", "failover"))
        position = given.choice("position", ("latest", "earliest"))
        given.end()
        topic = await self._broker.registry.ensure_topic(name)
        await self._broker.consuming.create(
            topic,
            subscription,
            kind,  # type: ignore[arg-type]
            earliest=position == "earliest",
        )
        return {"topic": name.full, "subscription": subscription}

    async def _delete_subscription(self, given: _Arguments) -> Plain:
        topic = self._broker.registry.topic(TopicName.parse(given.text("topic")))
        name = given.text("subscription")
        force = given.flag("force")
        given.end()
        subscription = topic.subscription(name)
        if subscription is None:
            raise NotFound(f"{topic.name.full} has no subscription {name}")
        if not force and subscription.consumers:
            raise Conflict(f"{name} has consumers; use --force to delete it all the same")
        await self._broker.consuming.delete(topic, name)
        return {"deleted": name}

    # -- the broker ------------------------------------------------------------------------

    async def _broker_stats(self, given: _Arguments) -> Plain:
        given.end()
        return self._broker.stats()

    _VERBS: Final[dict[str, Callable[[Admin, _Arguments], Awaitable[Plain]]]] = {
        "namespaces.list": _list_namespaces,
        "namespaces.get": _get_namespace,
        "namespaces.create": _create_namespace,
        "namespaces.delete": _delete_namespace,
        "namespaces.enable_delayed_message": _enable_delayed_message,
        "namespaces.disable_delayed_message": _disable_delayed_message,
        "topics.list": _list_topics,
        "topics.stats": _topic_stats,
        "topics.peek": _peek_topic,
        "topics.create": _create_topic,
        "topics.delete": _delete_topic,
        "subscriptions.list": _list_subscriptions,
        "subscriptions.create": _create_subscription,
        "subscriptions.delete": _delete_subscription,
        "broker.stats": _broker_stats,
    }


class _Arguments:
    """A verb's arguments, taken one by one and checked; ``end`` refuses what is left."""

    def __init__(self, verb: str, given: Arguments) -> None:
        self._verb = verb
        self._left = dict(given)

    def text(self, name: str) -> str:
        value = self._left.pop(name, None)
        if not isinstance(value, str):
            raise InvalidRequest(f"{self._verb} needs {name!r} as text")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self._left.get(name) is not None else self._left.pop(name, None)

    def optional_number(self, name: str) -> int | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise InvalidRequest(f"{self._verb} needs {name!r} as a positive whole number")
        return value

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise InvalidRequest(f"{self._verb} needs {name!r} as true or false")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self._left.pop(name, None)
        if value is None:
            return choices[0]
        if value not in choices:
            raise InvalidRequest(f"{self._verb} needs {name!r} as one of {', '.join(choices)}")
        return str(value)

    def end(self) -> None:
        if self._left:
            raise InvalidRequest(f"{self._verb} does not take {', '.join(map(repr, self._left))}")


def _namespace(namespace: Namespace) -> dict[str, Plain]:
    return {
        "namespace": f"{namespace.tenant}/{namespace.name}",
        "delays_enabled": namespace.delays_enabled,
        "granularity_ms": namespace.granularity_ms,
        "tick_ms": namespace.tick_ms,
        "created_at_ms": namespace.created_at_ms,
    }


def _stats(topic: Topic, subscription: Subscription) -> dict[str, Plain]:
    counts = subscription.counts
    shared = isinstance(subscription, SharedSubscription)
    return {
        "subscription": subscription.record.name,
        "kind": subscription.record.kind,
        "consumers": [consumer.name for consumer in subscription.consumers],
        "ready": len(subscription.ready) if isinstance(subscription, SharedSubscription) else 0,
        "behind": shared and subscription.mark is not None,  # type: ignore[attr-defined]
        "in_flight": len(subscription.in_flight),
        "unacknowledged": topic.next_offset - len(subscription.acked),
        "delivered": counts.delivered,
        "redelivered": counts.redelivered,
        "acknowledged": counts.acknowledged,
        "given_back": counts.given_back,
        "timed_out": counts.timed_out,
    }
