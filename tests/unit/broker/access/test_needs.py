"""The table of requests and rights is complete, and equal to the one in the guide."""

from __future__ import annotations

from pathlib import Path

import pytest

from escapement.access.rights import Need
from escapement.broker.access.needs import COMMAND_NEEDS, VERB_NEEDS, Row, needs_of
from escapement.broker.admin.admin import VERBS
from escapement.errors import InvalidRequest
from escapement.protocol import commands as wire
from support.rights_table import rights_table

GUIDE = Path(__file__).parents[4] / "docs" / "reference" / "rights.md"


def test_each_verb_and_each_command_has_its_needs() -> None:
    """O1: a new verb or command without a row in the table fails here."""
    assert VERB_NEEDS.keys() == VERBS.keys()
    sent = {kind for kind in wire.COMMANDS.values() if "client" in kind.SENDERS}
    assert COMMAND_NEEDS.keys() == sent


def test_page_of_rights_equals_the_table() -> None:
    rows: dict[str, Row] = VERB_NEEDS | {
        kind.__name__: row for kind, row in COMMAND_NEEDS.items() if row
    }
    expected = {
        name: [(right.action, right.resource) for right in row] for name, row in rows.items()
    }
    assert rights_table(GUIDE.read_text()) == expected


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("topics.get", {}),
        ("topics.get", {"topic": 7}),
        ("topics.get", {"topic": "a/*"}),
        ("topics.get", {"topic": "*"}),
        ("topics.create_many", {"topics": "a/b/c"}),
        ("topics.create_many", {"topics": [None]}),
        ("namespaces.get", {"namespace": "a"}),
        ("namespaces.get", {"namespace": "a/*"}),
        ("namespaces.get", {"namespace": None}),
        ("grants.add", {"pattern": None}),
        ("grants.add", {"pattern": "a/*/b"}),
        ("subscriptions.update", {"topic": "t", "policy": {"dead_letter_topic": 7}}),
    ],
)
def test_request_that_names_no_resource_is_refused(verb: str, arguments: dict[str, object]) -> None:
    """An argument that is missing or odd never means that no right is needed."""
    with pytest.raises(InvalidRequest, match=verb):
        list(needs_of(wire.Admin(1, verb, arguments)))


def test_request_about_several_topics_needs_a_right_on_each() -> None:
    def needs(verb: str, **arguments: object) -> list[str]:
        found: list[Need] = list(needs_of(wire.Admin(1, verb, arguments)))
        return [f"{need.action} {need.pattern}" for need in found]

    assert needs("groups.close", topic="t", target="a/b/c") == [
        "produce public/default/t",
        "produce a/b/c",
    ]
    assert needs("topics.create_many", topics=["t", "a/b/c"]) == [
        "admin public/default/t",
        "admin a/b/c",
    ]
    policy = {"dead_letter_topic": "x/y/z"}
    assert needs("subscriptions.create", topic="t", subscription="s", policy=policy) == [
        "consume public/default/t",
        "produce x/y/z",
    ]
    assert needs("topics.list") == ["peek *"]
    assert needs("topics.list", namespace="a/b") == ["peek a/b/*"]
    assert needs("tables.ack", topic="table://shop/mails", ids=[1]) == [
        "consume table://shop/mails"
    ]
