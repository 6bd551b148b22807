"""The time in which owners of bundles may come back after an outage of the database. Pure.

An outage lasts longer than some lease, so the rows of all nodes expire. The node that reconnects
first would find that it is alone, and take the bundles of the others, who come back a second later.

So a node remembers which nodes were alive when it last saw the database. If it then cannot see the
database for more than one renewal, others may have missed as many renewals for the same reason. It
goes on to treat them as alive for ``GRACE_RENEWALS`` after its next look, so that they renew first.
A node that really died in the outage costs that much more time. While the database answers, a dead
node gets no grace.

The grace only delays this node. Whether a bundle may be taken is decided in the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from escapement.storage.ownership import LiveBroker, Ownership

# Renewals for which nodes that were alive before an outage are treated as alive after it. A node
# tries a renewal in each such interval, and an attempt may take a while to fail.
GRACE_RENEWALS: Final = 2


class Grace:
    """The nodes that may come back, as one node knows them.

    Args:
      renewal_ms: the time between two renewals of a node's row.

    Attributes:
      unseen_ms: how long the node could not see the database before its last look, if the grace
        began with that look; else 0.
    """

    def __init__(self, renewal_ms: int) -> None:
        self._renewal_ms = renewal_ms
        self.unseen_ms = 0
        self._seen_at_ms: int | None = None
        self._nodes: Mapping[str, LiveBroker] = {}  # that were alive at the last look
        self._awaited: Mapping[str, LiveBroker] = {}  # that were alive before the outage
        self._ends_ms = 0

    def apply(
        self, at_ms: int, nodes: Mapping[str, LiveBroker], bundles: Mapping[int, Ownership]
    ) -> tuple[dict[str, LiveBroker], dict[int, Ownership]]:
        """Return the nodes and bundles as if those that may come back were alive.

        Args:
          at_ms: when the look at the database ended, on the lease clock.
          nodes: the live nodes.
        """
        before_ms = at_ms if self._seen_at_ms is None else self._seen_at_ms
        self._seen_at_ms, self.unseen_ms = at_ms, 0
        if at_ms - before_ms > self._renewal_ms:
            self.unseen_ms = at_ms - before_ms
            self._awaited = self._nodes
            self._ends_ms = at_ms + GRACE_RENEWALS * self._renewal_ms
        elif at_ms >= self._ends_ms:
            self._awaited = {}
        absent = {one: row for one, row in self._awaited.items() if one not in nodes}
        self._nodes = {**nodes, **absent}
        held = {
            bundle_id: replace(row, free=False) if _is_of(row, absent) else row
            for bundle_id, row in bundles.items()
        }
        return dict(self._nodes), held


def _is_of(row: Ownership, nodes: Mapping[str, LiveBroker]) -> bool:
    """Return whether one of the nodes owned the bundle, and has not released it."""
    owner = nodes.get(row.owner_id)
    return owner is not None and row.incarnation == owner.incarnation
