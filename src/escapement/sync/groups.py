"""The class ``Groups`` of the blocking client, a facade of ``escapement.Groups``.

When a subscription has finished all messages of a group, the broker publishes a *follow-up*.
"""

from __future__ import annotations

from escapement.client.constructor import internal
from escapement.client.producing import groups
from escapement.client.producing.groups import FollowUp, Group
from escapement.sync.loop import Loop


class Groups:
    """Requests about the message groups of topics; available as ``Broker.groups``."""

    @internal
    def __init__(self, loop: Loop, found: groups.Groups) -> None:
        self._loop = loop
        self._groups = found

    def close(self, topic: str, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group, and publish ``then`` when the subscription has finished its messages.

        See ``escapement.Groups.close``.
        """
        return self._loop.call(self._groups.close, topic, group, subscription, then)

    def list(self, topic: str) -> list[Group]:
        """Return the groups of a topic, ordered by name.

        Raises:
          NotFound: if the topic does not exist.
        """
        return self._loop.call(self._groups.list, topic)

    def get(self, topic: str, group: str) -> Group:
        """Return one group of a topic.

        Raises:
          NotFound: if the topic or the group does not exist.
        """
        return self._loop.call(self._groups.get, topic, group)

    def delete(self, topic: str, group: str) -> None:
        """Delete a group, but not its messages. Its follow-ups are never published after that.

        Raises:
          NotFound: if the topic or the group does not exist.
        """
        self._loop.call(self._groups.delete, topic, group)
