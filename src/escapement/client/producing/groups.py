"""Groups of messages, and the follow-up message that the broker publishes when a group is finished.

::

    for row in rows:
        await producer.submit(row, group="import-7")
    await producer.close_group("import-7", "workers", FollowUp(b"import 7 is done", "reports"))

A message joins a group of its topic when the producer sends it with the name of the group. The
application then *closes* the group for a subscription, and gives the *follow-up*. From then on no
message can join. The broker publishes the follow-up exactly once, when the subscription has
finished all messages of the group. This is the *completion* of the group for the subscription. A
message is finished when it is acknowledged, dead-lettered, expired or cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from escapement.client import content, delivery_times, serializers
from escapement.client.connection.retried_request import Ask
from escapement.client.constructor import internal
from escapement.client.delivery_times import Delay, moment_or_none
from escapement.client.serializers import SerializerLike
from escapement.clock import moment
from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, NO_TIME
from escapement.names import TopicName


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A message that the broker publishes to ``topic`` when a group is complete.

    The other fields are as for ``Producer.send``. ``delay`` counts from the publication of the
    follow-up. ``serializer`` converts ``value`` to bytes, as for ``Broker.producer``.
    """

    value: Any
    topic: str
    key: str | None = None
    properties: Mapping[str, Any] | None = None
    priority: int = DEFAULT_PRIORITY
    delay: Delay | None = None
    at: datetime | None = None
    serializer: SerializerLike = bytes

    def _arguments(self) -> dict[str, Any]:
        """Return this follow-up as arguments of the request ``groups.close``.

        Raises:
          InvalidRequest: if a field is not valid.
        """
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
    """The completion of a group for one subscription, as it was when the broker answered.

    ``state`` is *waiting* while the subscription has ``remaining`` unfinished messages of the
    group, and *fired* once the follow-up is published. It is *void* if the subscription was
    deleted before that. ``topic`` is the topic of the follow-up. ``closed`` and ``fired`` are the
    times when the group was closed and the follow-up was published.
    """

    subscription: str
    topic: str
    state: str
    remaining: int | None  # None unless ``state`` is waiting
    closed: datetime
    fired: datetime | None


@dataclass(frozen=True, slots=True)
class Group:
    """A message group, as it was when the broker answered.

    ``state`` is *open* or *closed*. ``messages`` is the number of messages in the group.
    ``completions`` has an entry for each subscription for which the group was closed.
    """

    topic: str
    name: str
    state: str
    messages: int
    completions: tuple[GroupCompletion, ...]


class Groups:
    """Requests about the message groups of topics; available as ``Broker.groups``."""

    @internal
    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def close(self, topic: str, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group, and publish ``then`` when the subscription has finished its messages.

        Sending a message to a closed group raises ``GroupClosed``. Repeating the call with the
        same arguments changes nothing, even from another process. A group may be closed for
        several subscriptions, each with its own follow-up. An empty group is complete at once.
        Messages that the subscription never receives count as finished. If the subscription is
        moved by a seek before the follow-up is published, it must finish all messages of the
        group again.

        Args:
          topic: the topic of the group, as for ``Broker.producer``.
          group: the name of the group.
          subscription: the subscription whose messages must be finished.
          then: the follow-up.

        Returns:
          The group with all its completions.

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
                **then._arguments(),
            )
        )

    async def list(self, topic: str) -> list[Group]:
        """Return the groups of a topic, ordered by name.

        Raises:
          NotFound: if the topic does not exist.
        """
        return [_group(one) for one in await self._ask("groups.list", topic=topic)]

    async def get(self, topic: str, group: str) -> Group:
        """Return one group of a topic.

        Raises:
          NotFound: if the topic or the group does not exist.
        """
        return _group(await self._ask("groups.get", topic=topic, group=group))

    async def delete(self, topic: str, group: str) -> None:
        """Delete a group, but not its messages. Its follow-ups are never published after that.

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
