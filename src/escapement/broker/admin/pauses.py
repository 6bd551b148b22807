"""The administrative operations (*verbs*) that pause and resume delivery.

They apply to all subscriptions of a topic, or to one.
"""

from __future__ import annotations

from typing import Final, TypedDict

from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.errors import InvalidRequest
from escapement.storage.catalog.rule import FOREVER_MS


class Pause(TypedDict):
    """Until when the deliveries of a topic, or of a subscription, are paused; 0: they are not."""

    topic: str
    subscription: str | None
    paused_until_ms: int


async def _pause(broker: Broker, given: Arguments) -> Pause:
    for_ms = given.optional_number("for_ms")
    until_ms = given.optional_number("until_ms")
    if for_ms is not None and until_ms is not None:
        raise InvalidRequest("a pause takes until_ms or for_ms, not both")
    if for_ms is not None:
        until_ms = broker.clock.now_ms() + for_ms
    elif until_ms is not None and until_ms <= broker.clock.now_ms():
        raise InvalidRequest("a pause cannot end in the past; to end a pause, resume")
    return await _set(broker, given, min(until_ms or FOREVER_MS, FOREVER_MS))


async def _resume(broker: Broker, given: Arguments) -> Pause:
    return await _set(broker, given, 0)


async def _set(broker: Broker, given: Arguments, until_ms: int) -> Pause:
    name = given.topic_name("topic")
    subscription = given.optional_text("subscription")
    given.end()
    changes = {"paused_until_ms": until_ms}
    if subscription is None:
        await broker.registry.update_topic(name, changes)
    else:
        topic = broker.registry.topic(name)
        await broker.registry.update_subscription(topic, subscription, changes)
    return {"topic": name.full, "subscription": subscription, "paused_until_ms": until_ms}


VERBS: Final[dict[str, Verb]] = {
    "dispatch.pause": _pause,
    "dispatch.resume": _resume,
}
