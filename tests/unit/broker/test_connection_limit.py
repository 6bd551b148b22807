"""The connections to the database that a node may need, against what its parts open."""

from __future__ import annotations

from escapement.broker.limits import DEFAULT_LIMITS
from escapement.broker.runners import LEASE_KEEPERS, LOOK_THREADS, WORK_THREADS
from escapement.storage.bundles import MAX_BUNDLES
from escapement.storage.engine.mysql.connection_limit import PER_BUNDLE, PER_NODE, needed


def test_connections_cover_the_lanes_and_threads_of_a_node() -> None:
    """B8: a start has two connections more, for its recovery and the fill of its index."""
    shared = DEFAULT_LIMITS.commit_lanes
    assert DEFAULT_LIMITS.of_bundle(16).commit_lanes + 2 == PER_BUNDLE
    assert WORK_THREADS + LOOK_THREADS + LEASE_KEEPERS + shared <= PER_NODE
    assert [needed(count) for count in (1, 16, MAX_BUNDLES)] == [35, 80, 224]
