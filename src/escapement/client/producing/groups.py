"""Groups of messages, and the follow-up that is published at group completion.

::

    for row in rows:
        await producer.submit(row, group="import-7")
    await producer.close_group("import-7", "workers", FollowUp(b"import 7 is done", "reports"))

A message joins a group of its topic by naming the group. Closing the group for a
subscription ends its membership and sets the follow-up. The broker publishes the follow-up
exactly once, when the subscription has finished all messages of the group. A message is
finished when it is acknowledged, dead-lettered, expired or cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from escapement.client import content, delivery_times, serializers
from escapement.client.connection.retried_request import Ask
from escapement.client.delivery_times import Delay, moment_or_none
from escapement.client.serializers import SerializerLike
from escapement.clock import moment
from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, NO_TIME
from escapement.names import TopicName


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The message to publish at group completion, with the fields of ``Producer.send``.

    ``delay`` counts from the publication of the follow-up. ``serializer`` is as for
    ``Broker.producer``.
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
        """Return the arguments for the broker's request. Raises ``InvalidRequest``."""
        content.check_priority(self.priority)
        delay_ms, at_ms = delivery_times.one(self.delay, self.at)
        return {
            "target": TopicName.parse(self.topic).full,
            "payload": serializers.serializer(self.serializer).dumps(self.value),
            "key": content.key(self.key),
            "properties": content.properties(self.properties),
            "priority": self.priority,
            "delay_ms": None if delay_ms == NO_TIME else delay_ms,
            "at_ms": None if at_ms == NO_TIME else at_ms,
        }


@dataclass(frozen=True, slots=True)
class GroupCompletion:
    """The state of a group's completion for one subscription, at the time of the request.

    ``state`` is *waiting* while the subscription has ``remaining`` unfinished messages, then
    *fired*, or *void* if the subscription was deleted first. ``topic`` is the topic of the
    follow-up.
    """

    subscription: str
    topic: str
    state: str
    remaining: int | None  # None unless ``state`` is waiting
    closed: datetime
    fired: datetime | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group at the time of the request; ``state`` is *open* or *closed*."""

    topic: str
    name: str
    state: str
    messages: int
    completions: tuple[GroupCompletion, ...]


class Groups:
    """The groups of topics; available as ``Broker.groups``."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def close(self, topic: str, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group, and publish ``then`` when the subscription has finished its messages.

        Publishing to a closed group raises ``GroupClosed``. Repeating the call with the same
        arguments changes nothing, even from another process. A group may be closed for
        several subscriptions, each with its own follow-up. An empty group is complete at
        once. Messages that the subscription never receives count as finished. After a seek,
        the subscription must finish all messages of the group again, unless the follow-up was
        already published.

        Raises:
          InvalidRequest: if an argument is not valid.
          NotFound: if the topic or the subscription does not exist.
          Conflict: if the group is closed for this subscription with another follow-up.
          LimitExceeded: if the follow-up is too large, or the topic has too many groups.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        if not isinstance(then, FollowUp):
            raise InvalidRequest(f"then must be a FollowUp, not {type(then).__name__}")
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
        """Return the groups of a topic, ordered by name. Raises ``NotFound``."""
        return [_group(one) for one in await self._ask("groups.list", topic=topic)]

    async def get(self, topic: str, group: str) -> Group:
        """Return one group. Raises ``NotFound``."""
        return _group(await self._ask("groups.get", topic=topic, group=group))

    async def delete(self, topic: str, group: str) -> None:
        """Delete a group. Its messages stay; follow-ups not yet published never will be.

        Raises:
          NotFound: if the topic or the group does not exist.
        """
        await self._ask("groups.delete", topic=topic, group=group)


def _group(plain: Mapping[str, Any]) -> Group:
    return Group(
        plain["topic"],
        plain["group"],
        plain["state"],
        plain["messages"],
        tuple(map(_completion, plain["completions"])),
    )


def _completion(plain: Mapping[str, Any]) -> GroupCompletion:
    return GroupCompletion(
        plain["subscription"],
        plain["target"],
        plain["state"],
        plain["remaining"],
        moment(plain["closed_at_ms"]),
        moment_or_none(plain["fired_at_ms"]),
    )
