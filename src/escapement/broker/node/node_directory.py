"""The directory of a node: the bundle of each topic and the owner of each bundle, in memory.

The node replaces what it knows each time it looks at the database. Between two looks it changes the
places of bundles that it takes or releases itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from escapement.broker.directory import Place
from escapement.broker.node.balancer import home_of, wanting
from escapement.names import TableName
from escapement.storage.bundles import bundle_of_name
from escapement.storage.ownership import LiveBroker, Ownership

_UNKNOWN = Place("", 0)


class NodeDirectory:
    """The bundles of a database and their owners, as a node knows them.

    Args:
      node_id: the id of this node.

    Attributes:
      leaving: the bundles that this node releases.
      is_cut_off: whether the leases of this node have expired, so that it does not know who owns
        which bundle.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self.nodes: dict[str, LiveBroker] = {}  # live nodes by id
        self.bundles: dict[int, Ownership] = {}
        self._names: dict[str, str] = {}  # of live nodes, and of dead ones that had a bundle last
        self._count = 1
        # Topics that were created when the database had fewer bundles, and so are in another bundle
        # than their name says.
        self._exceptions: Mapping[str, int] = {}
        self.leaving: set[int] = set()
        self.is_cut_off = False

    @property
    def count(self) -> int:
        """The number of bundles."""
        return self._count

    def learn(self, nodes: dict[str, LiveBroker], bundles: dict[int, Ownership]) -> None:
        """Replace the nodes and owners by those that the database has."""
        self.nodes, self.bundles = nodes, bundles
        known = self._names | {row.owner_id: row.name for row in nodes.values()}
        owners = {row.owner_id for row in bundles.values()}
        self._names = {one: name for one, name in known.items() if one in nodes or one in owners}

    def former_owner_of(self, bundle_id: int) -> str:
        """Return the node that had a bundle last, by its name, or by its id if it has died before.

        Return "" if no node had the bundle, or this one.
        """
        row = self.bundles.get(bundle_id)
        if row is None or row.owner_id == self._node_id:
            return ""
        return self._names.get(row.owner_id, row.owner_id)

    @property
    def has_exceptions(self) -> bool:
        """Whether topics are in other bundles than their names say."""
        return bool(self._exceptions)

    def place_topics(self, count: int, exceptions: Mapping[str, int]) -> None:
        """Replace the number of bundles and the exceptions."""
        self._count, self._exceptions = count, exceptions

    def bundle_of(self, topic: str) -> int:
        """Return the bundle of a topic by its full name, whether the topic exists or not."""
        if TableName.is_meant(topic):
            return 0
        found = self._exceptions.get(topic)
        return bundle_of_name(topic, self._count) if found is None else found

    def homes(self) -> list[str]:
        """Return the ids of the nodes that want bundles."""
        return wanting({row.owner_id: row.draining for row in self.nodes.values()})

    @property
    def has_others(self) -> bool:
        """Whether another node lives, which would take the bundles of this one."""
        return bool(self._others())

    def elsewhere(self, turn: int) -> int:
        """Return a bundle of another live node; each turn of another one. O(bundles).

        If no other node has a bundle, return the lowest bundle that has an owner, or 0.
        """
        owned = {bundle_id: row for bundle_id, row in sorted(self.bundles.items()) if not row.free}
        first_of: dict[str, int] = {}
        for bundle_id, row in owned.items():
            if row.owner_id in self.nodes and row.owner_id != self._node_id:
                first_of.setdefault(row.owner_id, bundle_id)
        if first_of:
            return list(first_of.values())[turn % len(first_of)]
        return min(owned, default=0)

    def owner_of(self, bundle_id: int, turn: int = 0) -> Place:
        """Return where clients find the broker of a bundle, now or soon. See ``Directory``.

        A node that is cut off names another one, each turn another one: any of them may know more.
        """
        row = self.bundles.get(bundle_id)
        if row is None:
            return _UNKNOWN
        owner_id: str | None = "" if row.free else row.owner_id
        if self.is_cut_off and (others := self._others()):
            owner_id = others[turn % len(others)]
        elif bundle_id in self.leaving:
            homes = [one for one in self.homes() if one != self._node_id]
            owner_id = home_of(bundle_id, homes, row.pinned_to)
        owner = self.nodes.get(owner_id or "")
        return Place("" if owner is None else owner.address, row.epoch)

    def next_owner_of(self, bundle_id: int) -> Place | None:
        """Return where the bundle of a broker goes that stops here. See ``Directory``."""
        place = self.owner_of(bundle_id)
        return place if self._count > 1 or place.address else None

    def _others(self) -> list[str]:
        return [one for one in self.nodes if one != self._node_id]
