"""The administrative operations (*verbs*) on nodes and bundles.

Every broker answers for all nodes, because it reads and changes tables that all nodes share.
"""

from __future__ import annotations

from typing import Final, TypedDict

from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.broker.cluster import ClusterView


class ClusterNode(TypedDict):
    """A live node. ``version`` is None for a node of a version that does not tell it."""

    id: str
    name: str
    address: str
    version: str | None
    draining: bool
    bundles: int
    load_per_s: int
    left_ms: int
    here: bool


class ClusterBundle(TypedDict):
    """A bundle of topics, and the node that owns it."""

    bundle: int
    owner: str | None
    owner_id: str | None
    address: str | None
    epoch: int
    free: bool
    pinned_to: str | None
    pinned_to_id: str | None


class ClusterStatus(TypedDict):
    """The nodes and bundles of a database, and advice to the operator."""

    nodes: list[ClusterNode]
    bundles: list[ClusterBundle]
    hint: str | None


class BundleCount(TypedDict):
    """The number of bundles, how many there were before, and what the server may lack for them."""

    bundles: int
    before: int
    warning: str | None


async def _status(broker: Broker, given: Arguments) -> ClusterStatus:
    given.end()
    return status_of(await broker.cluster.look(), broker.identity.owner_id)


def status_of(view: ClusterView, here: str) -> ClusterStatus:
    """Return the nodes and bundles as the node ``here`` tells them."""
    return {
        "nodes": sorted((_node(here, view, id) for id in view.nodes), key=lambda one: one["name"]),
        "bundles": [_bundle(view, id) for id in sorted(view.bundles)],
        "hint": view.hint,
    }


async def _drain(broker: Broker, given: Arguments) -> ClusterNode:
    node = given.text("node")
    given.end()
    return _node(broker.identity.owner_id, *await broker.cluster.drain(node, True))


async def _undrain(broker: Broker, given: Arguments) -> ClusterNode:
    node = given.text("node")
    given.end()
    return _node(broker.identity.owner_id, *await broker.cluster.drain(node, False))


async def _move(broker: Broker, given: Arguments) -> ClusterBundle:
    bundle, node = given.number("bundle"), given.optional_text("node")
    given.end()
    return _bundle(await broker.cluster.move(bundle, node), bundle)


async def _set_bundles(broker: Broker, given: Arguments) -> BundleCount:
    count = given.number("count")
    given.end()
    growth = await broker.cluster.set_bundle_count(count)
    return {"bundles": count, "before": growth.before, "warning": growth.warning}


def _node(here: str, view: ClusterView, node_id: str) -> ClusterNode:
    node = view.nodes[node_id]
    return {
        "id": node_id,
        "name": node.name,
        "address": node.address,
        "version": node.version or None,
        "draining": node.draining,
        "bundles": view.bundles_of(node_id),
        "load_per_s": node.load_per_s,
        "left_ms": node.left_ms,
        "here": node_id == here,
    }


def _bundle(view: ClusterView, bundle_id: int) -> ClusterBundle:
    row = view.bundles[bundle_id]
    owner = None if row.free else view.nodes.get(row.owner_id)
    wanted = view.nodes.get(row.pinned_to)
    return {
        "bundle": bundle_id,
        # A broker of an older version has no row in ``brokers``, and so no name.
        "owner": None if row.free else row.owner_id if owner is None else owner.name,
        "owner_id": None if row.free else row.owner_id,
        "address": None if owner is None else owner.address,
        "epoch": row.epoch,
        "free": row.free,
        "pinned_to": (row.pinned_to or None) if wanted is None else wanted.name,
        "pinned_to_id": row.pinned_to or None,
    }


VERBS: Final[dict[str, Verb]] = {
    "cluster.status": _status,
    "cluster.drain": _drain,
    "cluster.undrain": _undrain,
    "cluster.move": _move,
    "cluster.bundles": _set_bundles,
}
