"""Where a node says that clients find the broker of a bundle."""

from __future__ import annotations

from escapement.broker.directory import Place
from escapement.broker.node.balancer import home_of
from escapement.broker.node.node_directory import NodeDirectory
from escapement.storage.ownership import LiveBroker, Ownership


def directory(*draining: str, owner: str = "a", free: bool = False, pin: str = "") -> NodeDirectory:
    """Return the directory of node "a": nodes "a", "b" and "c", and bundle 0 with epoch 5."""
    found = NodeDirectory("a")
    nodes = {one: LiveBroker(one, "", one, f"{one}:7650", one in draining, 1000) for one in "abc"}
    found.learn(nodes, {0: Ownership(0, owner, "", 5, free, pin)})
    return found


def leaving(found: NodeDirectory) -> NodeDirectory:
    """Let the node release bundle 0."""
    found.leaving.add(0)
    return found


def test_a_pin_changes_nothing_before_the_owner_releases_the_bundle() -> None:
    """B8."""
    assert directory(owner="b", pin="c").owner_of(0) == Place("b:7650", 5)


def test_the_next_owner_is_the_node_to_which_the_bundle_is_pinned() -> None:
    """B8: clients go there directly."""
    for pin in "bc":
        assert leaving(directory(pin=pin)).owner_of(0) == Place(f"{pin}:7650", 5)


def test_a_pin_to_a_node_that_is_draining_or_gone_does_not_count() -> None:
    """B8."""
    for found, homes in (
        (directory("b", pin="b"), ["c"]),
        (directory(pin="gone"), ["b", "c"]),
        (directory("a", "b", "c"), ["b", "c"]),
    ):
        assert leaving(found).owner_of(0) == Place(f"{home_of(0, homes)}:7650", 5)


def test_a_node_that_is_cut_off_names_all_others_in_turn() -> None:
    """B8: they know who owns a bundle, and it does not."""
    for owner, draining in (("a", ""), ("b", ""), ("a", "bc")):  # which would take it nevertheless
        found = directory(*draining, owner=owner)
        assert found.has_others
        found.is_cut_off = True
        named = [found.owner_of(0, turn) for turn in range(3)]
        assert named == [Place(f"{one}:7650", 5) for one in "bcb"]
        assert found.next_owner_of(0) == Place("b:7650", 5)
    found.nodes = {"a": found.nodes["a"]}
    assert not found.has_others
    assert found.owner_of(0) == Place("a:7650", 5)  # a look has shown that the others are gone


def test_a_client_without_a_wish_is_sent_to_each_other_owner_in_turn() -> None:
    """B8: one of them may have died without the node knowing it yet."""
    found = directory()
    owners = {0: "a", 1: "c", 2: "b", 3: "c", 4: "gone"}
    rows = {bundle: Ownership(bundle, one, "", 5, False) for bundle, one in owners.items()}
    rows[5] = Ownership(5, "b", "", 5, True)
    found.bundles = rows
    assert [found.elsewhere(turn) for turn in range(4)] == [1, 2, 1, 2]
    for bundles, expected in (([0, 4], 0), ([4, 5], 4), ([5], 0), ([], 0)):
        found.bundles = {bundle: rows[bundle] for bundle in bundles}
        assert found.elsewhere(1) == expected


def test_an_expired_owner_is_not_named_and_its_epoch_stays() -> None:
    """B8: it may renew late, so the next epoch would be a guess."""
    assert directory(owner="b", free=True, pin="c").owner_of(0) == Place("", 5)
    assert directory(owner="gone").owner_of(0) == Place("", 5)
    assert directory().owner_of(1) == Place("", 0)


def test_name_of_a_dead_owner_is_known_while_it_had_a_bundle_last() -> None:
    """B8: the log names it when its bundles are taken over."""
    found = directory(owner="b")
    assert [found.former_owner_of(bundle_id) for bundle_id in (0, 7)] == ["b", ""]
    alone = {"a": found.nodes["a"]}
    found.learn(alone, {0: Ownership(0, "b", "", 5, True)})
    assert found.former_owner_of(0) == "b"
    found.learn(alone, {0: Ownership(0, "a", "", 6, False)})
    assert found.former_owner_of(0) == ""
    found.learn(alone, {0: Ownership(0, "id-of-b", "", 7, True)})
    assert found.former_owner_of(0) == "id-of-b"
