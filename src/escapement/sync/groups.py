"""The blocking face of ``escapement.client.groups``."""

from __future__ import annotations

from escapement.client import groups
from escapement.client.groups import FollowUp, Group
from escapement.sync.loop import Loop


class Groups:
    """Made by ``Broker.groups``; see ``escapement.client.groups.Groups``."""

    def __init__(self, loop: Loop, found: groups.Groups) -> None:
        self._loop = loop
        self._groups = found

    def close(self, topic: str, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group: ``then`` is published once the subscription is done with all of it."""
        return self._loop.call(self._groups.close, topic, group, subscription, then)

    def list(self, topic: str) -> list[Group]:
        """The groups of a topic, by name."""
        return self._loop.call(self._groups.list, topic)

    def get(self, topic: str, group: str) -> Group:
        """One group."""
        return self._loop.call(self._groups.get, topic, group)

    def delete(self, topic: str, group: str) -> None:
        """Forget a group: what has not fired never will."""
        self._loop.call(self._groups.delete, topic, group)
