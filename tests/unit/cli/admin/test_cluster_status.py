"""The tables of `escapement admin cluster status`."""

from __future__ import annotations

from typing import Any

import pytest

from escapement.cli.admin.cluster import print_status

ID = "4f1c0b7e" + "0" * 24


def node(id: str, address: str, **changes: Any) -> dict[str, Any]:
    found = {"id": id, "name": "0.0.0.0:7650", "address": address, "draining": False}
    found |= {"version": "0.1.0"}
    found |= {"bundles": 8, "load_per_s": 5210, "left_ms": 9123, "here": False}
    return found | changes


def bundle(number: int, owner_id: str | None, pinned_to_id: str | None = None) -> dict[str, Any]:
    found = {"bundle": number, "owner": "0.0.0.0:7650", "owner_id": owner_id, "address": None}
    found |= {"epoch": 3, "free": owner_id is None, "pinned_to": "0.0.0.0:7650"}
    return found | {"pinned_to_id": pinned_to_id}


def lines(capsys: pytest.CaptureFixture[str], hint: str | None, *rows: dict[str, Any]) -> list[str]:
    nodes = [row for row in rows if "id" in row]
    print_status({"nodes": nodes, "bundles": [r for r in rows if r not in nodes], "hint": hint})
    return [line.rstrip() for line in capsys.readouterr().out.split("\n")]


def test_tables_have_short_ids_and_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """B8: owners are named by their addresses, because all names may be 0.0.0.0:7650."""
    other, dead = "b" * 32, "c" * 32
    rows = [node(ID, "broker-1.example.com:7650", here=True)]
    rows += [node(other, "", left_ms=10_000, version=None)]
    rows += [bundle(0, ID, other), bundle(1, None, ID), bundle(2, dead)]
    assert lines(capsys, "Add bundles.", *rows) == [
        "id        address                    version  drains  bundles  load  left  here",
        "4f1c0b7e  broker-1.example.com:7650  0.1.0    no            8  5210  9 s   yes",
        "bbbbbbbb  0.0.0.0:7650               -        no            8  5210  10 s  no",
        "",
        "bundle  owner                      epoch  free  pinned to",
        "     0  broker-1.example.com:7650      3  no    0.0.0.0:7650",
        "     1  no owner                       3  yes   broker-1.example.com:7650",
        "     2  cccccccc                       3  no    -",
        "",
        "Add bundles.",
        "",
    ]


def test_ids_are_as_long_as_needed_to_tell_nodes_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """B8: each can be given to `cluster drain`."""
    found = lines(capsys, None, node(ID, "a:7650"), node(ID[:10] + "1" * 22, "b:7650"))
    assert [line.split()[0] for line in found[1:3]] == ["4f1c0b7e000", "4f1c0b7e001"]
    assert found[-2:] == ["no bundles", ""]
