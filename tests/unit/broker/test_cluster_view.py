"""The advice about the nodes and bundles of a database."""

from __future__ import annotations

import pytest

from escapement.broker.cluster import ClusterView
from escapement.storage.ownership import LiveBroker, Ownership


@pytest.mark.parametrize(
    ("nodes", "draining", "bundles", "hint"),
    [
        (1, 0, 1, None),
        (3, 0, 3, None),
        (3, 1, 2, None),
        (2, 0, 1, "2 nodes share 1 bundle: one of them has no topics. bundles 16"),
        (5, 1, 2, "4 nodes share 2 bundles: 2 of them have no topics. bundles 16"),
        (2, 2, 1, "2 nodes share 1 bundle: one of them has no topics. bundles 16"),
        (20, 0, 16, "20 nodes share 16 bundles: 4 of them have no topics. bundles 20"),
        (70, 0, 60, "70 nodes share 60 bundles: 10 of them have no topics. bundles 64"),
        (70, 0, 64, None),
    ],
)
def test_nodes_without_topics_are_advised_to_have_more_bundles(
    nodes: int, draining: int, bundles: int, hint: str | None
) -> None:
    """B8: nodes that drain want no topics, unless all drain."""
    live = [LiveBroker(f"{at}", "", "", "", at < draining, 1000) for at in range(nodes)]
    owned = {at: Ownership(at, "0", "", 1, False) for at in range(bundles)}
    found = ClusterView({one.owner_id: one for one in live}, owned).hint
    advice = "Add bundles for new topics: escapement admin cluster "
    assert (found and found.replace(advice, "")) == hint
