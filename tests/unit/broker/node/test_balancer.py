"""The bundles that nodes take and release (B8)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from escapement.broker.node.balancer import (
    PATIENCE_RENEWALS,
    RELEASED_AT_ONCE,
    STABLE_MS,
    Balancer,
    Decision,
    Situation,
    home_of,
)
from support.seeds import seeds

RENEWAL_MS = 3000
BUNDLES = 16


class Cluster:
    """Nodes that read the same table, one after the other, and act at once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ms = 0
        self.owner: dict[int, str | None] = dict.fromkeys(range(BUNDLES))
        self.nodes: dict[str, Balancer] = {}
        self.draining: set[str] = set()
        self.pins: dict[int, str] = {}
        self.moves = 0
        self.free_since_ms: dict[int, int] = {}

    def join(self, node_id: str) -> None:
        self.nodes[node_id] = Balancer(node_id, RENEWAL_MS)

    def leave(self, node_id: str) -> None:
        """A node dies. Its bundles are free."""
        del self.nodes[node_id]
        self.draining.discard(node_id)
        for bundle_id, owner in self.owner.items():
            if owner == node_id:
                self.owner[bundle_id] = None

    def round(self) -> None:
        """Let every node look once."""
        self.now_ms += RENEWAL_MS
        for node_id in self.rng.sample(sorted(self.nodes), len(self.nodes)):
            owned = {b for b, owner in self.owner.items() if owner == node_id}
            free = {b for b, owner in self.owner.items() if owner is None}
            live = {one: one in self.draining for one in self.nodes}
            seen = Situation(self.now_ms, live, free, owned, frozenset(), self.pins)
            decision = self.nodes[node_id].decide(seen)
            for bundle_id in decision.release:
                assert self.owner[bundle_id] == node_id
                self.owner[bundle_id] = None
            for bundle_id in decision.take:
                assert self.owner[bundle_id] is None
                self.owner[bundle_id] = node_id
                self.moves += 1
        self.free_since_ms = {
            b: self.free_since_ms.get(b, self.now_ms)
            for b, owner in self.owner.items()
            if owner is None
        }
        for since_ms in self.free_since_ms.values():
            assert self.now_ms - since_ms <= PATIENCE_RENEWALS * RENEWAL_MS

    def is_balanced(self) -> bool:
        homes = [one for one in self.nodes if one not in self.draining]
        return all(
            owner == home_of(b, homes, self.pins.get(b, "")) for b, owner in self.owner.items()
        )


@pytest.mark.parametrize("seed", seeds(range(30)))
def test_nodes_that_come_and_go_share_the_bundles(seed: int) -> None:
    """Every bundle has an owner after two renewals, and its home as owner in the end.

    A bundle that is pinned to a node that wants bundles is there after a few renewals.
    """
    rng = random.Random(seed)
    cluster = Cluster(rng)
    cluster.join("n0")
    for step in range(1, 30):
        if len(cluster.nodes) < 2 or rng.random() < 0.5:
            cluster.join(f"n{step}")
        elif rng.random() < 0.3:
            cluster.draining.add(rng.choice(sorted(cluster.nodes)))
        else:
            cluster.leave(rng.choice(sorted(cluster.nodes)))
        if rng.random() < 0.3:
            cluster.pins[rng.randrange(BUNDLES)] = rng.choice(["", "n0", *sorted(cluster.nodes)])
        for _ in range(PATIENCE_RENEWALS + 2 + 2 * BUNDLES // RELEASED_AT_ONCE):
            cluster.round()
        if cluster.draining < cluster.nodes.keys():
            assert not cluster.draining & set(cluster.owner.values())
            for bundle_id, pinned_to in cluster.pins.items():
                if pinned_to in cluster.nodes.keys() - cluster.draining:
                    assert cluster.owner[bundle_id] == pinned_to
    cluster.draining.clear()
    for _ in range(STABLE_MS // RENEWAL_MS + 2 * BUNDLES + PATIENCE_RENEWALS):
        cluster.round()
    assert cluster.is_balanced()
    before = cluster.moves
    for _ in range(100):
        cluster.round()
    assert cluster.moves == before, "bundles move although the nodes are the same"


def test_a_new_node_takes_a_part_of_the_bundles_from_each_other_node() -> None:
    ids = [f"node-{n}" for n in range(5)]
    moved = Counter[str]()
    for bundle_id in range(1000):
        before, after = home_of(bundle_id, ids[:4]), home_of(bundle_id, ids)
        if before != after:
            assert after == ids[4], "a bundle moved between old nodes"
            moved[str(before)] += 1
    assert sorted(moved) == ids[:4]
    assert 150 < moved.total() < 250
    assert home_of(0, []) is None


def test_home_of_a_bundle_is_the_same_in_every_process() -> None:
    """Otherwise nodes would take bundles from each other forever. Versions must agree, too."""
    homes = "".join(str(home_of(bundle_id, ["a", "b", "c"])) for bundle_id in range(8))
    assert homes == "bbbbbaba"


def owner_of_what_is_anothers(nodes: dict[str, bool]) -> tuple[Balancer, list[int], list[int]]:
    """Return the balancer of node "a", its own bundles, and those whose home is another node."""
    homes = [one for one, draining in nodes.items() if not draining]
    own = [b for b in range(BUNDLES) if home_of(b, homes) == "a"]
    return Balancer("a", RENEWAL_MS), own, [b for b in range(BUNDLES) if b not in own]


def test_a_bundle_of_another_node_is_taken_after_two_renewals() -> None:
    nodes = {"a": False, "b": False}
    balancer, own, others = owner_of_what_is_anothers(nodes)
    free = frozenset(range(BUNDLES))
    none = frozenset[int]()
    first = balancer.decide(Situation(0, nodes, free, none, none))
    assert first == Decision(take=tuple(own))
    rest, mine = frozenset(others), frozenset(own)
    for at_ms in (RENEWAL_MS, 2 * RENEWAL_MS - 1):
        assert balancer.decide(Situation(at_ms, nodes, rest, mine, none)) == Decision()
    late = balancer.decide(Situation(2 * RENEWAL_MS, nodes, rest, mine, none))
    assert late == Decision(take=tuple(others))


def test_one_bundle_at_a_time_moves_for_balance_and_only_among_stable_nodes() -> None:
    nodes = {"a": False, "b": False}
    balancer, _, others = owner_of_what_is_anothers(nodes)
    none, every = frozenset[int](), frozenset(range(BUNDLES))
    assert balancer.decide(Situation(0, nodes, none, every, none)) == Decision()
    early = Situation(STABLE_MS - 1, nodes, none, every, none)
    assert balancer.decide(early) == Decision()
    stable = Situation(STABLE_MS, nodes, none, every, none)
    assert balancer.decide(stable) == Decision(release=(others[0],))
    moving = Situation(STABLE_MS + 1, nodes, none, every, frozenset(others[:1]))
    assert balancer.decide(moving) == Decision()
    given = frozenset(others[:1])
    free = Situation(STABLE_MS + 2, nodes, given, every - given, none)
    assert balancer.decide(free) == Decision(), "its home has not taken it yet"
    taken = Situation(STABLE_MS + 3, nodes, none, every - given, none)
    assert balancer.decide(taken) == Decision(release=(others[1],))
    joined = Situation(STABLE_MS + 4, nodes | {"c": False}, none, every - given, none)
    assert balancer.decide(joined) == Decision(), "the nodes have just changed"


def test_a_draining_node_releases_all_its_bundles_a_few_at_a_time() -> None:
    balancer = Balancer("a", RENEWAL_MS)
    nodes, none, every = {"a": True, "b": False}, frozenset[int](), frozenset(range(BUNDLES))
    first = balancer.decide(Situation(0, nodes, none, every, none))
    assert first == Decision(release=tuple(range(RELEASED_AT_ONCE)))
    moving = frozenset({0, 1})
    more = balancer.decide(Situation(1, nodes, none, every, moving))
    assert more == Decision(release=tuple(range(2, RELEASED_AT_ONCE)))


def test_nodes_that_are_all_draining_behave_as_if_none_were() -> None:
    """B8: bundles keep an owner although the last node that wanted them has died."""
    balancer, none = Balancer("a", RENEWAL_MS), frozenset[int]()
    half, rest = frozenset(range(8)), frozenset(range(8, BUNDLES))
    alone = balancer.decide(Situation(0, {"a": True}, rest, half, none))
    assert alone == Decision(take=tuple(range(8, BUNDLES)))
    nodes = {"a": True, "b": True}
    both = balancer.decide(Situation(1, nodes, rest, half, none))
    assert both == Decision(take=tuple(b for b in rest if home_of(b, nodes) == "a"))


def test_a_pinned_bundle_moves_at_once_to_its_node_while_that_wants_it() -> None:
    """B8: without the time for which nodes must be stable, and whatever node its home was."""
    nodes = {"a": False, "b": False}
    balancer, own, others = owner_of_what_is_anothers(nodes)
    none, every = frozenset[int](), frozenset(range(BUNDLES))
    away = dict.fromkeys(own[:2], "b") | {others[0]: "a", others[1]: "gone"}
    assert balancer.decide(Situation(0, nodes, none, every, none, away)) == Decision(
        release=tuple(own[:2])
    )
    moving = frozenset(own[:1])
    assert balancer.decide(Situation(1, nodes, none, every, moving, away)) == Decision(
        release=(own[1],)
    )
    free = frozenset({own[0], others[0]})
    took = balancer.decide(Situation(2, nodes, free, every - free, none, away))
    assert took == Decision(take=(others[0],), release=(own[1],))
    drained = nodes | {"b": True}
    assert balancer.decide(Situation(3, drained, none, every, none, away)) == Decision()


def test_a_bundle_stays_for_a_while_where_it_was_taken_in_place_of_its_home() -> None:
    """B8: a home that is ill does not get it again and again, also if it is pinned there."""
    nodes = {"a": False, "b": False}
    balancer, own, _ = owner_of_what_is_anothers(nodes)
    none, mine, pins = frozenset[int](), frozenset(own), {own[0]: "b"}
    at_ms = STABLE_MS
    balancer.decide(Situation(0, nodes, none, mine, none))
    released = balancer.decide(Situation(at_ms, nodes, none, mine, none, pins))
    assert released == Decision(release=(own[0],))
    left = mine - {own[0]}
    assert balancer.decide(Situation(at_ms, nodes, mine - left, left, none, pins)) == Decision()
    at_ms += PATIENCE_RENEWALS * RENEWAL_MS
    took = balancer.decide(Situation(at_ms, nodes, mine - left, left, none, pins))
    assert took == Decision(take=(own[0],))
    soon = Situation(at_ms + STABLE_MS - 1, nodes, none, mine, none, pins)
    assert balancer.decide(soon) == Decision()
    later = Situation(at_ms + STABLE_MS, nodes, none, mine, none, pins)
    assert balancer.decide(later) == Decision(release=(own[0],))
