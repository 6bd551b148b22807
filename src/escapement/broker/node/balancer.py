"""Decides which bundles a node takes and releases. Pure.

There is no leader. Every node reads the same tables, and computes the same *home* of each bundle:
the node that should own it. The home is the live node with the highest hash of node and bundle
(rendezvous hashing, Thaler and Ravishankar 1998). When a node leaves, only its bundles get another
home, spread over all others. When a node joins, only its own new bundles do.

A node

1. takes a free bundle whose home it is, at once;
2. takes any other free bundle if that stays free for two renewals, because its home may be ill;
3. releases a bundle whose home is another node, but only one at a time, and only if the same nodes
   have lived for ``STABLE_MS``. So a node that restarts often moves nothing.

A node that is draining is the home of no bundle. It takes none, and releases all that it owns, at
most ``DRAINED_AT_ONCE`` at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Final

# How long the same nodes must have lived before a bundle moves for balance.
STABLE_MS: Final = 30_000
# Renewals for which a bundle must be free before a node that is not its home takes it.
PATIENCE_RENEWALS: Final = 2
# Bundles that a draining node releases at the same time. Each stop writes a checkpoint.
DRAINED_AT_ONCE: Final = 4


def home_of(bundle_id: int, node_ids: Collection[str]) -> str | None:
    """Return the id of the node that should own a bundle; None if there are no nodes."""
    return max(node_ids, key=lambda node_id: _weight(bundle_id, node_id), default=None)


def _weight(bundle_id: int, node_id: str) -> bytes:
    return hashlib.blake2b(f"{bundle_id}/{node_id}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Situation:
    """The nodes and bundles of a database, as one node sees them.

    Attributes:
      at_ms: when it read them, on the lease clock.
      nodes: by id, whether each live node is draining.
      free: the bundles that nobody owns.
      owned: the bundles that this node owns, or has begun to take.
      moving: those of ``owned`` that are starting or stopping.
    """

    at_ms: int
    nodes: Mapping[str, bool]
    free: Set[int]
    owned: Set[int]
    moving: Set[int]


@dataclass(frozen=True, slots=True)
class Decision:
    """The bundles that a node takes and releases now, in the order of their ids."""

    take: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


class Balancer:
    """The decisions of one node.

    Args:
      node_id: the id of this node.
      renewal_ms: the time between two renewals of a node's row.
    """

    def __init__(self, node_id: str, renewal_ms: int) -> None:
        self._node_id = node_id
        self._patience_ms = PATIENCE_RENEWALS * renewal_ms
        self._nodes: Mapping[str, bool] = {}
        self._stable_since_ms = 0
        self._free_since_ms: dict[int, int] = {}

    def decide(self, seen: Situation) -> Decision:
        """Return what to take and release. Call it with each new situation, in order of time."""
        assert seen.moving <= seen.owned, "a bundle moves that this node does not own"
        assert not seen.free & seen.owned, "a bundle is free and owned"
        if seen.nodes != self._nodes:
            self._nodes, self._stable_since_ms = dict(seen.nodes), seen.at_ms
        self._free_since_ms = {
            bundle_id: self._free_since_ms.get(bundle_id, seen.at_ms) for bundle_id in seen.free
        }
        at_rest = sorted(seen.owned - seen.moving)
        if self._nodes.get(self._node_id, False):
            return Decision(release=tuple(at_rest[: max(DRAINED_AT_ONCE - len(seen.moving), 0)]))
        homes = [node_id for node_id, draining in self._nodes.items() if not draining]
        take = [
            bundle_id
            for bundle_id, since_ms in sorted(self._free_since_ms.items())
            if home_of(bundle_id, homes) == self._node_id
            or seen.at_ms - since_ms >= self._patience_ms
        ]
        release: list[int] = []
        if not seen.moving and not take and seen.at_ms - self._stable_since_ms >= STABLE_MS:
            release = [one for one in at_rest if home_of(one, homes) != self._node_id][:1]
        return Decision(tuple(take), tuple(release))
