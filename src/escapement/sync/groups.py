"""The blocking facade of ``escapement.client.producing.groups``."""

from __future__ import annotations

from escapement.client.producing import groups
from escapement.client.producing.groups import FollowUp, Group
from escapement.sync.loop import Loop


class Groups:
    """The groups of topics; available as ``Broker.groups``."""

    def __init__(self, loop: Loop, found: groups.Groups) -> None:
        self._loop = loop
        self._groups = found

    def close(self, topic: str, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group and publish ``then`` at its completion; see ``escapement.Groups.close``."""
        return self._loop.call(self._groups.close, topic, group, subscription, then)

    def list(self, topic: str) -> list[Group]:
        """Return the groups of a topic, ordered by name. Raises ``NotFound``."""
        return self._loop.call(self._groups.list, topic)

    def get(self, topic: str, group: str) -> Group:
        """Return one group. Raises ``NotFound``."""
        return self._loop.call(self._groups.get, topic, group)

    def delete(self, topic: str, group: str) -> None:
        """Delete a group; see ``escapement.Groups.delete``. Raises ``NotFound``."""
        self._loop.call(self._groups.delete, topic, group)
