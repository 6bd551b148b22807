"""Decides which bundles a node takes and releases. Pure.

There is no leader. Every node reads the same tables, and computes the same *home* of each bundle:
the node that should own it. The home is the live node with the highest hash of node and bundle
(rendezvous hashing, Thaler and Ravishankar 1998). When a node leaves, only its bundles get another
home, spread over all others. When a node joins, only its own new bundles do.

A node

1. takes a free bundle whose home it is, at once;
2. takes any other free bundle if that stays free for two renewals, because its home may be ill;
3. releases a bundle whose home is another node, but only if the same nodes have lived for
   ``STABLE_MS``, so a node that restarts often moves nothing. It releases the next one when a node
   has taken this one, so a home that is ill delays only one bundle of each node at a time.

An operator may *pin* a bundle to a node. While that node lives, it is the home of the bundle, and
the owner releases the bundle without waiting for ``STABLE_MS``.

A node that is draining is the home of no bundle. It takes none, and releases all that it owns. If
all nodes are draining, they behave as if none were, because every bundle needs an owner.

At most ``RELEASED_AT_ONCE`` bundles of a node stop at the same time. A bundle that a node took
because its home did not stays with it for ``STABLE_MS``: otherwise a home that is ill would get it
again and again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

# How long the same nodes must have lived before a bundle moves for balance.
STABLE_MS: Final = 30_000
# Renewals for which a bundle must be free before a node that is not its home takes it.
PATIENCE_RENEWALS: Final = 2
# Bundles that a node releases at the same time. Each stop writes a checkpoint.
RELEASED_AT_ONCE: Final = 4


def wanting(nodes: Mapping[str, bool]) -> list[str]:
    """Return the ids of the nodes that want bundles.

    Args:
      nodes: by id, whether each live node is draining.
    """
    return [node_id for node_id, draining in nodes.items() if not draining] or list(nodes)


def home_of(bundle_id: int, node_ids: Collection[str], pinned_to: str = "") -> str | None:
    """Return the id of the node that should own a bundle; None if there are no nodes.

    Args:
      pinned_to: the id of the node that an operator wants; "" for any.
    """
    if pinned_to in node_ids:
        return pinned_to
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
      pins: the nodes that an operator wants, by bundle.
    """

    at_ms: int
    nodes: Mapping[str, bool]
    free: Set[int]
    owned: Set[int]
    moving: Set[int]
    pins: Mapping[int, str] = field(default_factory=dict)


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
        self._given: int | None = None  # the last bundle that was released for balance
        # The home of each bundle that this node took in its place, and when. One entry per bundle.
        self._stood_in: dict[int, tuple[str | None, int]] = {}

    def decide(self, seen: Situation) -> Decision:
        """Return what to take and release. Call it with each new situation, in order of time."""
        assert seen.moving <= seen.owned, "a bundle moves that this node does not own"
        assert not seen.free & seen.owned, "a bundle is free and owned"
        if seen.nodes != self._nodes:
            self._nodes, self._stable_since_ms = dict(seen.nodes), seen.at_ms
        self._free_since_ms = {
            bundle_id: self._free_since_ms.get(bundle_id, seen.at_ms) for bundle_id in seen.free
        }
        nodes = wanting(self._nodes)
        take = self._taken(seen, nodes) if self._node_id in nodes else []
        return Decision(tuple(take), tuple(self._released(seen, nodes, bool(take))))

    def _taken(self, seen: Situation, nodes: list[str]) -> list[int]:
        """Return the free bundles to take."""
        found: list[int] = []
        for bundle_id, since_ms in sorted(self._free_since_ms.items()):
            home = home_of(bundle_id, nodes, seen.pins.get(bundle_id, ""))
            if home == self._node_id:
                found.append(bundle_id)
            elif seen.at_ms - since_ms >= self._patience_ms:
                found.append(bundle_id)
                self._stood_in[bundle_id] = home, seen.at_ms
        return found

    def _released(self, seen: Situation, nodes: list[str], takes: bool) -> list[int]:
        """Return the bundles to release."""
        at_rest = sorted(seen.owned - seen.moving)
        room = max(RELEASED_AT_ONCE - len(seen.moving), 0)
        if self._node_id not in nodes:
            return at_rest[:room]
        homes = {one: home_of(one, nodes, seen.pins.get(one, "")) for one in at_rest}
        others = [
            one
            for one, home in homes.items()
            if home != self._node_id and not self._stands_in(one, home, seen.at_ms)
        ]
        pinned = [one for one in others if seen.pins.get(one) == homes[one]]
        if pinned:
            return pinned[:room]
        is_stable = seen.at_ms - self._stable_since_ms >= STABLE_MS
        is_moving = bool(seen.moving) or takes or self._given in seen.free
        if not others or is_moving or not is_stable:
            return []
        self._given = others[0]
        return others[:1]

    def _stands_in(self, bundle_id: int, home: str | None, now_ms: int) -> bool:
        """Return whether this node took a bundle not long ago because its home did not."""
        stood_in_for, since_ms = self._stood_in.get(bundle_id, (None, 0))
        return stood_in_for == home and now_ms - since_ms < STABLE_MS
