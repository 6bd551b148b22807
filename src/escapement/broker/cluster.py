"""The nodes and bundles of a database, and what an operator changes about them.

Everything is in the tables ``brokers`` and ``leases``, so the broker of any bundle can show and
change it. Each node reads the changes in its next look at these tables, a second later at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from escapement.errors import Conflict, InvalidRequest, NotFound
from escapement.storage import lease, members
from escapement.storage.blocking import Run
from escapement.storage.bundles import MAX_BUNDLES, bundle_count, set_bundle_count
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.mysql.connection_limit import warn_of_shortage
from escapement.storage.log.table_sets import check_bundles
from escapement.storage.ownership import LiveBroker, Ownership, look_at_all

# The least characters of the beginning of an id that names a node.
_LEAST_PREFIX: Final = 4
# The number of bundles that is advised: enough for a few nodes.
_GOOD_COUNT: Final = 16


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The live nodes and all bundles of a database, as they were at one moment."""

    nodes: Mapping[str, LiveBroker]
    bundles: Mapping[int, Ownership]

    def bundles_of(self, node_id: str) -> int:
        """Return the number of bundles that a node owns."""
        return sum(not row.free and row.owner_id == node_id for row in self.bundles.values())

    @property
    def hint(self) -> str | None:
        """Advice to the operator, if there are more nodes than bundles; otherwise None."""
        nodes = sum(not one.draining for one in self.nodes.values()) or len(self.nodes)
        bundles = len(self.bundles)
        if bundles >= min(nodes, MAX_BUNDLES):
            return None
        spare = nodes - bundles
        return (
            f"{nodes} nodes share {bundles} bundle{'' if bundles == 1 else 's'}:"
            f" {'one of them has' if spare == 1 else f'{spare} of them have'} no topics. Add"
            " bundles for new topics: escapement admin cluster bundles"
            f" {min(max(nodes, _GOOD_COUNT), MAX_BUNDLES)}"
        )

    def find(self, text: str) -> LiveBroker:
        """Return the live node with a name, an address, an id, or an id that begins with ``text``.

        Raises:
          NotFound: if there is none.
          InvalidRequest: if there are several.
        """
        nodes = self.nodes.values()
        found = [one for one in nodes if text in (one.owner_id, one.name, one.address)]
        if not found and len(text) >= _LEAST_PREFIX:
            found = [one for one in nodes if one.owner_id.startswith(text)]
        if not found:
            raise NotFound(f"No live node is named {text!r}. {self._listed('Live nodes')}")
        if len(found) > 1:
            ids = ", ".join(one.owner_id for one in found)
            raise InvalidRequest(f"{text!r} names several nodes. Give one of their ids: {ids}.")
        return found[0]

    def check_may_drain(self, node: LiveBroker) -> None:
        """Raise ``Conflict`` unless another node can take the bundles of ``node``."""
        others = (one for one in self.nodes.values() if one.owner_id != node.owner_id)
        if all(one.draining for one in others):
            raise Conflict(
                f"No other node can take the bundles of {node.name}: none is alive, or all others"
                " are draining. Start another node first, or end the draining of one."
            )

    def _listed(self, title: str) -> str:
        nodes = (f"{one.name} ({one.owner_id})" for one in self.nodes.values())
        return f"{title}: {', '.join(nodes) or 'none'}."


@dataclass(frozen=True, slots=True)
class Growth:
    """The effect of adding bundles.

    Attributes:
      before: how many there were.
      warning: why the server may have too few connections for them; None if it has enough.
    """

    before: int
    warning: str | None


class Cluster:
    """The nodes and bundles of a database.

    Args:
      run: makes blocking calls.
      parallelism: the number of tables of a generation of the log.
    """

    def __init__(self, engine: Engine, run: Run, parallelism: int) -> None:
        self._engine = engine
        self._run = run
        self._parallelism = parallelism

    async def look(self) -> ClusterView:
        """Return the nodes and bundles."""
        return await self._run(self._look)

    async def drain(self, node: str, draining: bool) -> tuple[ClusterView, str]:
        """Let a node give all its bundles to others and take none; or end that.

        Args:
          node: its name, address or id, or the beginning of its id.

        Returns:
          The nodes and bundles after the change, and the id of the node.

        Raises:
          NotFound: if the node is not alive.
          Conflict: if no other node can take the bundles.
        """
        return await self._run(self._drain, node, draining)

    async def move(self, bundle_id: int, node: str | None) -> ClusterView:
        """Pin a bundle to a node, so that it moves there; None ends the pin.

        Raises:
          NotFound: if the bundle does not exist, or the node is not alive.
          Conflict: if the node is draining.
        """
        return await self._run(self._move, bundle_id, node)

    async def set_bundle_count(self, count: int) -> Growth:
        """Add bundles until there are ``count``.

        Raises:
          InvalidRequest: if there are more already, or ``count`` is too large.
          MissingRight: if the broker may not create tables, and too few exist for the bundles.
        """
        return await self._run(self._grow, count)

    def _grow(self, count: int) -> Growth:
        with closing(self._engine.connect()) as connection:
            if bundle_count(connection) < count <= MAX_BUNDLES:
                check_bundles(self._engine, connection, count, self._parallelism)
            before = set_bundle_count(self._engine, count)
            return Growth(before, warn_of_shortage(self._engine, connection, count))

    def _look(self) -> ClusterView:
        with closing(self._engine.connect()) as connection:
            return self._view(connection)

    def _drain(self, text: str, draining: bool) -> tuple[ClusterView, str]:
        with closing(self._engine.connect()) as connection:
            view = self._view(connection)
            node = view.find(text)
            if draining:
                view.check_may_drain(node)
            key = (node.owner_id, node.incarnation)
            if not members.set_draining(connection, key, draining):
                raise NotFound(f"Node {node.name} ({node.owner_id}) has just ended.")
            return self._view(connection), node.owner_id

    def _move(self, bundle_id: int, text: str | None) -> ClusterView:
        with closing(self._engine.connect()) as connection:
            view = self._view(connection)
            if bundle_id not in view.bundles:
                raise NotFound(
                    f"There is no bundle {bundle_id}. The database has bundles 0 to"
                    f" {max(view.bundles, default=0)}."
                )
            node = None if text is None else view.find(text)
            if node is not None and node.draining:
                raise Conflict(
                    f"Node {node.name} is draining, so it takes no bundle. Choose another node,"
                    " or end the draining first."
                )
            lease.pin(connection, bundle_id, "" if node is None else node.owner_id)
            return self._view(connection)

    def _view(self, connection: Connection) -> ClusterView:
        return ClusterView(*look_at_all(self._engine, connection))
