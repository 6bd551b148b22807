"""Which requests the audit log records, and what it stores of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from escapement.broker.access.audited import (
    MAX_ARGUMENTS_BYTES,
    OF_APPLICATIONS,
    UNRECORDED,
    Origin,
    described,
    recorded_command,
    recorded_verb,
)
from escapement.broker.admin.admin import VERBS
from escapement.protocol import commands as wire
from support.verb_arguments import TAKEN

# The verbs that change nothing. A new verb is recorded unless it is added here.
READING = {
    "access.own", "audit.list", "broker.findings", "broker.stats", "bulk.list", "bulk.preview",
    "bulk.show", "cluster.status",
    "dlq.count", "dlq.find", "dlq.list", "dlq.show", "grants.list", "groups.get", "groups.list",
    "inbox.list",
    "jobs.list", "push.list", "push.show", "push.secrets",
    "messages.select", "messages.show", "namespaces.forecast", "namespaces.get",
    "namespaces.list", "schedules.get", "schedules.list", "schedules.next", "subscriptions.get",
    "subscriptions.lateness", "subscriptions.list", "subscriptions.overview",
    "tables.list", "tokens.list",
    "topics.forecast", "topics.get", "topics.list", "topics.peek", "topics.stats",
}  # fmt: skip
HINTS = {"outboxes.poll", "tables.poll"}
CLI, APPLICATION = Origin("cli", "127.0.0.1:1", ""), Origin("shop", "127.0.0.1:2", "")


def test_every_verb_that_changes_something_is_recorded() -> None:
    """B17: applications are left out only where they acknowledge rows or close groups."""
    assert READING | HINTS == UNRECORDED
    changing = VERBS.keys() - READING - HINTS
    for verb in VERBS:
        given = {name: value for name, (value, _) in TAKEN[verb].items() if name != "dry_run"}
        by_person = recorded_verb(verb, given, CLI)
        assert (by_person is not None) is (verb in changing), verb
        if by_person is not None:
            assert by_person.verb == verb
            assert by_person.object or verb in (
                "topics.create_many",
                "broker.update",
                "cluster.bundles",
            ), verb
        by_application = recorded_verb(verb, given, APPLICATION)
        assert (by_application is not None) is (verb in changing - OF_APPLICATIONS), verb
    assert recorded_verb("namespaces.delete", {"namespace": "a/b", "dry_run": True}, CLI) is None
    assert recorded_verb("no.such", {}, CLI) is None


def test_reason_of_a_bulk_change_is_the_reason_unless_the_client_has_another() -> None:
    given = {"topic": "t", "action": "cancel", "reason": "wrong price"}
    for origin, expected in ((CLI, "wrong price"), (CLI._replace(reason="4711"), "4711")):
        request = recorded_verb("bulk.start", given, origin)
        assert request is not None
        assert (request.object, request.reason) == ("public/default/t", expected)


def test_changes_of_messages_are_recorded_for_people_only() -> None:
    """B17: offsets are counted, and the first are named."""
    offsets = np.arange(5_000)
    command = wire.Reschedule(1, "orders", offsets, -1, 77, 0)
    request = recorded_command(command, CLI)
    assert request is not None
    assert (request.verb, request.object) == ("messages.reschedule", "public/default/orders")
    assert json.loads(request.arguments) == {
        "messages": 5_000, "offsets": list(range(10)), "at_ms": 77, "spread_ms": 0,
    }  # fmt: skip
    assert recorded_command(command, APPLICATION) is None
    assert recorded_command(wire.Find(1, "orders", b"k"), CLI) is None


def test_producers_are_recorded_for_people_and_with_a_reason_of_their_own() -> None:
    """B17: once, when they are new. Agents publish over producers that they share."""
    new = wire.OpenProducer(1, 1, "orders", "p", -1)
    request = recorded_command(new, CLI._replace(reason="4711"))
    assert request is not None
    assert request[:2] == ("messages.produce", "public/default/orders")
    assert (json.loads(request.arguments), request.reason) == ({"producer": "p"}, "4711")
    explained = replace(new, reason="4712")
    for origin, wanted in (
        (Origin("console"), True),
        (Origin("mcp"), False),
        (APPLICATION._replace(reason="4711"), False),
    ):
        assert (recorded_command(new, origin) is not None) is wanted
        assert recorded_command(replace(new, epoch=0), origin) is None
        known = recorded_command(explained, origin)
        assert known is not None
        assert known.reason == "4712"
        assert recorded_command(replace(explained, epoch=0), origin) is None


def test_arguments_have_no_secrets_and_no_content() -> None:
    given = {
        "digest": bytes(32),
        "payload": "card 4711",
        "key": b"k" * 9,
        "url": "https://ops:pa@ss@a.example/x",
        "policy": {"push_secret": "s3cr3t", "headers": {"Authorization": "Bearer x"}, "ttl_ms": 5},
    }  # fmt: skip
    assert json.loads(described(given)) == {
        "url": "https://***@a.example/x", "digest": "***", "payload": "***", "key": "9 bytes",
        "policy": {"push_secret": "***", "headers": {"Authorization": "***"}, "ttl_ms": 5},
    }  # fmt: skip


def test_arguments_are_bounded_and_say_what_is_left_out() -> None:
    many = json.loads(described({"topics": [f"a/b/{n}" for n in range(9_999)]}))
    assert many["topics"][:2] == ["a/b/0", "a/b/1"]
    assert many["topics"][-1] == "… (9999 items)"
    long = described({"position": "ä" * 100_000})
    assert "100000 characters" in long
    for given in (
        {f"name {n}" * 9: {f"{m}" * 99: ["ü" * 300] * 30 for m in range(30)} for n in range(30)},
        {"x" * 10_000: 1},
    ):
        text = described(given)
        assert len(text.encode()) <= MAX_ARGUMENTS_BYTES
        assert json.loads(text)
