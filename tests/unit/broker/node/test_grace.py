"""Owners come back after an outage before others take their bundles (B8)."""

from __future__ import annotations

import random

import pytest

from escapement.broker.node.balancer import Balancer, Situation, home_of
from escapement.broker.node.grace import GRACE_RENEWALS, Grace
from escapement.storage.ownership import LiveBroker, Ownership
from support.seeds import seeds

RENEWAL_MS = 3000
LOOK_MS = 1000
LEASE_MS = 3 * RENEWAL_MS
NODES = ("a", "b", "c")
BUNDLES = 16


class Tables:
    """The tables of a database, and the nodes that read them and renew their rows."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.owners = {bundle_id: str(home_of(bundle_id, NODES)) for bundle_id in range(BUNDLES)}
        self.expires_ms = dict.fromkeys(NODES, LEASE_MS)
        self.moves = 0
        self._graces = {one: Grace(RENEWAL_MS) for one in NODES}
        self._balancers = {one: Balancer(one, RENEWAL_MS) for one in NODES}

    def _live(self, node_id: str) -> bool:
        return self.expires_ms[node_id] > self.now_ms

    def look(self, node_id: str) -> None:
        """Let a node look at the tables, renew after an outage, and take bundles."""
        live = {
            one: LiveBroker(one, one, one, "", False, self.expires_ms[one] - self.now_ms)
            for one in NODES
            if self._live(one)
        }
        rows = {
            bundle_id: Ownership(bundle_id, owner, owner, 1, not self._live(owner))
            for bundle_id, owner in self.owners.items()
        }
        nodes, bundles = self._graces[node_id].apply(self.now_ms, live, rows)
        if self._graces[node_id].unseen_ms:
            self.renew(node_id)
        owned = {b for b, owner in self.owners.items() if owner == node_id}
        decision = self._balancers[node_id].decide(
            Situation(
                self.now_ms,
                dict.fromkeys({*nodes, node_id}, False),
                {row.bundle_id for row in bundles.values() if row.free} - owned,
                owned,
                frozenset(),
            )
        )
        for bundle_id in decision.take:
            assert not self._live(self.owners[bundle_id]), "the database refuses it"
            self.owners[bundle_id] = node_id
            self.moves += 1

    def renew(self, node_id: str) -> None:
        self.expires_ms[node_id] = self.now_ms + LEASE_MS

    def live(self, nodes: list[str], until_ms: int) -> None:
        """Let these nodes look and renew, until a time."""
        while self.now_ms < until_ms:
            for node_id in nodes:
                if self.now_ms % RENEWAL_MS == 0:
                    self.renew(node_id)
                self.look(node_id)
            self.now_ms += LOOK_MS


@pytest.mark.parametrize("seed", seeds(range(30)))
def test_no_bundle_moves_after_an_outage_of_all_nodes(seed: int) -> None:
    """The nodes see the database again one after the other, within two renewals."""
    rng = random.Random(seed)
    tables = Tables()
    tables.live(list(NODES), 10 * LOOK_MS)
    tables.now_ms += rng.randrange(RENEWAL_MS + LOOK_MS, 5 * LEASE_MS, LOOK_MS)
    returns = {one: tables.now_ms + rng.randrange(2 * RENEWAL_MS) for one in NODES}
    for _ in range(4 * RENEWAL_MS // LOOK_MS):
        back = [one for one in NODES if tables.now_ms >= returns[one]]
        tables.live(rng.sample(back, len(back)), tables.now_ms + LOOK_MS)
    assert tables.moves == 0


def test_a_node_that_died_in_an_outage_loses_its_bundles_after_two_renewals() -> None:
    tables = Tables()
    tables.live(list(NODES), 10 * LOOK_MS)
    tables.now_ms += 2 * LEASE_MS
    back_ms, dead = tables.now_ms, [b for b, owner in tables.owners.items() if owner == "c"]
    assert dead
    tables.live(["a", "b"], back_ms + GRACE_RENEWALS * RENEWAL_MS)
    assert tables.moves == 0
    tables.live(["a", "b"], back_ms + GRACE_RENEWALS * RENEWAL_MS + 2 * LOOK_MS)
    assert tables.moves == len(dead)
    assert all(tables.owners[b] == home_of(b, ("a", "b")) for b in dead)


def test_a_node_that_dies_while_the_database_answers_gets_no_grace() -> None:
    """A take-over takes as long as before: until the lease expires and the next look."""
    tables = Tables()
    tables.live(list(NODES), 9 * LOOK_MS)
    expires_ms = tables.expires_ms["c"]
    tables.live(["a", "b"], expires_ms + LOOK_MS)
    assert "c" not in tables.owners.values()


def test_a_second_outage_begins_the_grace_again() -> None:
    tables = Tables()
    tables.live(list(NODES), 10 * LOOK_MS)
    for _ in range(3):
        tables.now_ms += LEASE_MS + 1
        tables.look("a")
    assert tables.moves == 0
    tables.now_ms += RENEWAL_MS
    tables.look("a")
    assert tables.moves == 0


def test_a_bundle_that_was_free_or_is_released_is_taken_in_spite_of_an_outage() -> None:
    """Only a node that was alive before the outage, and has the bundle still, is waited for."""
    grace, none = Grace(RENEWAL_MS), dict[str, LiveBroker]()
    lost = Ownership(0, "gone", "gone", 3, True)
    held = Ownership(1, "b", "b", 3, False)
    assert grace.apply(0, {"b": LiveBroker("b", "b", "b", "", False, 1)}, {0: lost, 1: held}) == (
        {"b": LiveBroker("b", "b", "b", "", False, 1)},
        {0: lost, 1: held},
    )
    at_ms = 2 * LEASE_MS
    released = Ownership(1, "b", "", 3, True)
    _, bundles = grace.apply(at_ms, none, {0: lost, 1: released})
    assert bundles[0].free
    assert bundles[1].free
    restarted = Ownership(1, "b", "b", 3, True)
    _, bundles = grace.apply(at_ms, {"b": LiveBroker("b", "b2", "b", "", False, 1)}, {1: restarted})
    assert bundles[1].free, "its process ended and another one has its identity"
