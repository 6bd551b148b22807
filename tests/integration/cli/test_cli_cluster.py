"""`escapement admin cluster`, against a broker in a separate process that is alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.processes.broker import broker_process
from support.processes.command_lines import Say, process


def test_status_prints_the_nodes_and_the_bundles(say: Say) -> None:
    """B8."""
    (node,) = json.loads(say("admin", "cluster", "status", "-o", "json"))["nodes"]
    nodes, bundles = say("admin", "cluster", "status").split("\n\n")
    head, row = nodes.splitlines()
    assert head.split()[:6] == ["id", "address", "version", "drains", "bundles", "load"]
    assert row.split()[:5] == [node["id"][:8], node["address"], node["version"], "no", "1"]
    assert row.split()[-2:] == ["s", "yes"]
    head, row = bundles.splitlines()
    assert head.split() == ["bundle", "owner", "epoch", "free", "pinned", "to"]
    assert row.split()[:2] == ["0", node["address"]]
    assert row.split()[-2:] == ["no", "-"]


def test_node_without_bundles_prints_the_status_although_the_owner_was_killed(
    mysql_url: str, tmp_path: Path
) -> None:
    """B8: it answers itself, and does not send the command to the owner."""
    with (
        broker_process(tmp_path / "owner", mysql_url) as owner,
        broker_process(tmp_path / "standby", mysql_url) as standby,
    ):
        owner.kill()
        asked = process(standby, "admin", "cluster", "status")
        said, complaints = asked.communicate(timeout=60)
        assert asked.returncode == 0, complaints
        nodes = [row.split() for row in said.decode().partition("\n\n")[0].splitlines()]
        here = [row[1] for row in nodes if row[-1] == "yes"]
        assert here == [f"127.0.0.1:{standby.port}"], said


def test_a_bundle_is_pinned_and_unpinned(say: Say) -> None:
    """B8."""
    (node,) = json.loads(say("admin", "cluster", "status", "-o", "json"))["nodes"]
    pinned = say("admin", "cluster", "move", "0", node["id"][:6])
    assert pinned.splitlines()[-2].split() == ["pinned", "to", node["name"]]
    pinned = say("admin", "cluster", "move", "0", "--anywhere")
    assert pinned.splitlines()[-2].split() == ["pinned", "to", "-"]
    assert "no bundle 9" in say("admin", "cluster", "move", "9", node["name"], fails=1)


@pytest.mark.parametrize("words", [["0"], ["0", "a:1", "--anywhere"]])
def test_a_move_needs_either_a_node_or_anywhere(say: Say, words: list[str]) -> None:
    assert "Give a NODE, or --anywhere." in say("admin", "cluster", "move", *words, fails=2)


def test_the_only_node_cannot_be_drained(say: Say) -> None:
    """B8: the error asks for another node."""
    (node,) = json.loads(say("admin", "cluster", "status", "-o", "json"))["nodes"]
    refused = say("admin", "cluster", "drain", node["name"], fails=1)
    assert "Start another node first" in refused
    assert "Live nodes: " + node["name"] in say("admin", "cluster", "undrain", "nobody", fails=1)


def test_adding_bundles_says_that_topics_stay(say: Say) -> None:
    """B8."""
    said = say("admin", "cluster", "bundles", "1")
    assert said == "The database has 1 bundle; it had 1. Existing topics stay where they are.\n"
    assert "64" in say("admin", "cluster", "bundles", "65", fails=2)
