"""The administrative operations (*verbs*) on push targets, to which `escapement push` posts."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypedDict

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.result import Deleted, Fields
from escapement.broker.admin.verb import MAX_ROWS, Verb, topic_of
from escapement.broker.broker import Broker
from escapement.broker.push_targets import NamedTarget
from escapement.errors import InvalidRequest
from escapement.names import NamespaceName
from escapement.storage.catalog.push_targets import PushPolicy, secret_text

# How long both secrets sign after a rotation, if the request does not say.
_KEEP_MS: Final = 86_400_000
_MOST_KEEP_MS: Final = 30 * 86_400_000


class PushHead(TypedDict):
    """The subscription of a push target, and when its older secret stops signing."""

    topic: str
    subscription: str
    created_at_ms: int
    old_secret_until_ms: int | None


class NewSecret(TypedDict):
    """A secret that no other answer shows again."""

    secret: str


class PushWork(TypedDict):
    """All that `escapement push` needs to know of a target.

    ``topic_id`` and ``log`` make the ids of messages unique. ``secrets`` are those that sign now.
    """

    topic: str
    subscription: str
    topic_id: int
    log: str
    url: str
    timeout_ms: int
    ack_wait_ms: int
    concurrency: int
    secrets: list[str]


PushSettings = Annotated[dict[str, Plain], Fields(PushHead, PushPolicy)]
SecretPushSettings = Annotated[dict[str, Plain], Fields(PushHead, PushPolicy, NewSecret)]


async def _create(broker: Broker, given: Arguments) -> SecretPushSettings:
    topic = topic_of(broker, given)
    name, url = given.text("subscription"), given.text("url")
    settings = {**given.map("policy"), "url": url}
    given.end()
    made = await broker.services.push_targets.create(topic, name, settings)
    return {**_plain(broker, made), "secret": secret_text(made.target.secret)}


async def _update(broker: Broker, given: Arguments) -> PushSettings:
    topic = topic_of(broker, given)
    name, changes = given.text("subscription"), given.changes("policy")
    given.end()
    return _plain(broker, await broker.services.push_targets.update(topic, name, changes))


async def _rotate(broker: Broker, given: Arguments) -> SecretPushSettings:
    topic = topic_of(broker, given)
    name, keep_ms = given.text("subscription"), given.optional_offset("keep_ms")
    given.end()
    keep_ms = _KEEP_MS if keep_ms is None else keep_ms
    if keep_ms > _MOST_KEEP_MS:
        raise InvalidRequest("push.rotate needs 'keep_ms' of at most 30 days.")
    made = await broker.services.push_targets.rotate(topic, name, keep_ms)
    return {**_plain(broker, made), "secret": secret_text(made.target.secret)}


async def _delete(broker: Broker, given: Arguments) -> Deleted:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    given.end()
    await broker.services.push_targets.delete(topic, name)
    return {"deleted": name}


async def _show(broker: Broker, given: Arguments) -> PushSettings:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    given.end()
    return _plain(broker, await broker.services.push_targets.find(topic, name))


async def _pause(broker: Broker, given: Arguments) -> PushSettings:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    given.end()
    targets = broker.services.push_targets
    return _plain(broker, await targets.update(topic, name, {"paused": True}))


async def _resume(broker: Broker, given: Arguments) -> PushSettings:
    topic = topic_of(broker, given)
    name = given.text("subscription")
    given.end()
    targets = broker.services.push_targets
    return _plain(broker, await targets.update(topic, name, {"paused": False}))


async def _list(broker: Broker, given: Arguments) -> list[PushSettings]:
    within = given.optional_text("namespace")
    given.end()
    return [_plain(broker, one) for one in await _seen(broker, given, within)]


async def _secrets(broker: Broker, given: Arguments) -> list[PushWork]:
    within = given.optional_text("namespace")
    given.end()
    now_ms, log = broker.clock.now_ms(), broker.services.log_identity.hex()
    return [
        {
            "topic": topic,
            "subscription": name,
            "topic_id": target.topic_id,
            "log": log,
            "url": target.policy.url,
            "timeout_ms": target.policy.timeout_ms,
            "ack_wait_ms": target.ack_wait_ms,
            "concurrency": target.policy.concurrency,
            "secrets": target.secrets(now_ms),
        }
        for topic, name, target in await _seen(broker, given, within)
        if not target.policy.paused
    ]


async def _seen(broker: Broker, given: Arguments, within: str | None) -> list[NamedTarget]:
    """Return the targets of a namespace, or of all, that the caller administers."""
    prefix = "" if within is None else NamespaceName.parse(within).full + "/"
    seen = given.caller.coverage("admin")
    found = await broker.services.push_targets.all()
    return [one for one in found if one.topic.startswith(prefix) and one.topic in seen][:MAX_ROWS]


def _plain(broker: Broker, named: NamedTarget) -> dict[str, Any]:
    topic, name, target = named
    both = len(target.secrets(broker.clock.now_ms())) > 1
    head: PushHead = {
        "topic": topic,
        "subscription": name,
        "created_at_ms": target.created_at_ms,
        "old_secret_until_ms": target.old_until_ms if both else None,
    }
    return {**head, **target.policy.plain()}


VERBS: Final[dict[str, Verb]] = {
    "push.create": _create,
    "push.update": _update,
    "push.rotate": _rotate,
    "push.delete": _delete,
    "push.show": _show,
    "push.pause": _pause,
    "push.resume": _resume,
    "push.list": _list,
    "push.secrets": _secrets,
}
