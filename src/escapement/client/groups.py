"""Groups of messages: what follows when a subscription is done with all of one.

::

    for row in rows:
        await producer.submit(row, group="import-7")
    await producer.close_group("import-7", "workers", FollowUp(b"import 7 is done", "reports"))

Messages join a group of their topic by naming it. Closing it for a subscription says that
there will be no more, and what is to be published, exactly once, when that subscription is
done with all of them: acknowledged, dead-lettered, expired, or cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from escapement.client import content, schedule, serializers
from escapement.client.asking import ask_verb
from escapement.client.line import Line
from escapement.client.schedule import Delay, moment
from escapement.client.serializers import SerializerLike
from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, NO_TIME
from escapement.names import TopicName


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What is published when a group is done; its fields as for ``Producer.send``.

    ``delay`` counts from when it is published; ``serializer`` is as for ``Broker.producer``.
    """

    value: Any
    topic: str
    key: str | None = None
    properties: Mapping[str, Any] | None = None
    priority: int = DEFAULT_PRIORITY
    delay: Delay | None = None
    at: datetime | None = None
    serializer: SerializerLike = bytes

    def arguments(self) -> dict[str, Any]:
        """As the broker's verb has them. Raises ``InvalidRequest``."""
        content.check_priority(self.priority)
        delay_ms, at_ms = schedule.one(self.delay, self.at)
        return {
            "target": TopicName.parse(self.topic).full,
            "payload": serializers.serializer(self.serializer).dumps(self.value),
            "key": None if self.key is None else content.key(self.key),
            "properties": content.properties(self.properties) if self.properties else None,
            "priority": self.priority,
            "delay_ms": None if delay_ms == NO_TIME else delay_ms,
            "at_ms": None if at_ms == NO_TIME else at_ms,
        }


@dataclass(frozen=True, slots=True)
class GroupClosing:
    """One closing of a group as it was when it was asked for.

    ``state`` is *waiting* until the subscription is done with the ``remaining`` messages, then
    *fired*; *void* if the subscription was deleted before. ``topic`` is the follow-up's.
    """

    subscription: str
    topic: str
    state: str
    remaining: int | None  # known of what waits
    closed: datetime
    fired: datetime | None


@dataclass(frozen=True, slots=True)
class Group:
    """One group as it was when it was asked for; ``state`` is *open* or *closed*."""

    topic: str
    name: str
    state: str
    messages: int
    closings: tuple[GroupClosing, ...]


class Groups:
    """The groups of topics; reached through ``Broker.groups``."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def close(self, topic: str, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group: ``then`` is published once the subscription is done with all of it.

        Nothing joins the group any more (``GroupClosed``). Asked again with the same
        arguments, also by another process, it changes nothing. A group may be closed for
        several subscriptions, each with a follow-up of its own; one that nobody has joined is
        done at once. What the subscription was never to get counts as done. A subscription
        that is sought is to be done with it all again, unless the follow-up has fired.

        Raises:
          InvalidRequest: if an argument cannot be meant.
          NotFound: if there is no such topic or subscription.
          Conflict: if it is closed for this subscription with another follow-up.
          LimitExceeded: if the follow-up is too large, or there are too many groups.
          EscapementError: if the broker refuses, or there is none in time.
        """
        if not isinstance(then, FollowUp):
            raise InvalidRequest(f"what follows is a FollowUp, not {type(then).__name__}")
        return _group(
            await self._ask(
                "groups.close",
                topic=topic,
                group=group,
                subscription=subscription,
                **then.arguments(),
            )
        )

    async def list(self, topic: str) -> list[Group]:
        """The groups of a topic, by name. Raises ``NotFound``."""
        return [_group(one) for one in await self._ask("groups.list", topic=topic)]

    async def get(self, topic: str, group: str) -> Group:
        """One group. Raises ``NotFound``."""
        return _group(await self._ask("groups.get", topic=topic, group=group))

    async def delete(self, topic: str, group: str) -> None:
        """Forget a group: what has not fired never will. Its messages stay.

        Raises ``NotFound``.
        """
        await self._ask("groups.delete", topic=topic, group=group)

    async def _ask(self, verb: str, **arguments: Any) -> Any:
        return await ask_verb(self._line, verb, arguments)


def _group(plain: Mapping[str, Any]) -> Group:
    return Group(
        plain["topic"],
        plain["group"],
        plain["state"],
        plain["messages"],
        tuple(map(_closing, plain["closings"])),
    )


def _closing(plain: Mapping[str, Any]) -> GroupClosing:
    fired_at_ms = plain["fired_at_ms"]
    return GroupClosing(
        plain["subscription"],
        plain["target"],
        plain["state"],
        plain["remaining"],
        moment(plain["closed_at_ms"]),
        None if fired_at_ms is None else moment(fired_at_ms),
    )
