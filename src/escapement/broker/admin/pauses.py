"""The administrative operations (*verbs*) that pause and resume delivery.

They apply to all subscriptions of a topic, or to one.
"""

from __future__ import annotations

from typing import Final

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.errors import InvalidRequest
from escapement.storage.catalog.rule import FOREVER_MS


async def _pause(broker: Broker, given: Arguments) -> Plain:
    for_ms = given.optional_number("for_ms")
    until_ms = given.optional_number("until_ms")
    if for_ms is not None and until_ms is not None:
        raise InvalidRequest("a pause takes until_ms or for_ms, not both")
    if for_ms is not None:
        until_ms = broker.clock.now_ms() + for_ms
    elif until_ms is not None and until_ms <= broker.clock.now_ms():
        raise InvalidRequest("a pause cannot end in the past; to end a pause, resume")
    return await _set(broker, given, min(until_ms or FOREVER_MS, FOREVER_MS))


async def _resume(broker: Broker, given: Arguments) -> Plain:
    return await _set(broker, given, 0)


async def _set(broker: Broker, given: Arguments, until_ms: int) -> Plain:
    name = given.topic_name("topic")
    subscription = given.optional_text("subscription")
    given.end()
    changes = {"paused_until_ms": until_ms}
    if subscription is None:
        await broker.registry.update_topic(name, changes)
    else:
        topic = broker.registry.topic(name)
        await broker.registry.update_subscription(topic, subscription, changes)
    return {"topic": name.full, "subscription": subscription, **changes}


VERBS: Final[dict[str, Verb]] = {
    "dispatch.pause": _pause,
    "dispatch.resume": _resume,
}
