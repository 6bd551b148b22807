"""The names that the objects of a client show to users are those that users should call."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

import escapement
import escapement.sync
from support.client_peer import Peer, connect, on_both

ROW = {"deliver_at", "due_ms", "group", "id", "key", "offset", "payload", "priority", "properties"}
ROW |= {"row"}
MESSAGE = ROW | {"ack", "attempt", "extend", "nack", "redelivered", "reject", "release", "value"}
COLUMNS = {"due_ms", "messages", "offsets", "payloads", "topic", "values"}
BATCH = COLUMNS | {"ack", "attempts", "extend", "nack", "redelivered", "reject", "release"}
INBOX = {"ack", "ack_range", "active", "batches", "extend", "flush_acks", "nack", "name"}
INBOX |= {
    "fields",
    "next_batch",
    "pull",
    "receive",
    "reject",
    "release",
    "seek",
    "subscription",
    "topic",
}
PRODUCER = {"close_group", "flush", "message", "name", "next_sequence", "send", "send_batch"}
PRODUCER |= {"send_many", "submit", "topic", "waits_for"}
BROKER = {
    "ack_rows",
    "admin",
    "because",
    "bulk",
    "cancel",
    "connected",
    "consumer",
    "find",
    "forecast",
    "forecast_namespace",
    "groups",
    "hint",
    "limits",
}
BROKER |= {
    "name",
    "pause",
    "peek",
    "producer",
    "read",
    "reschedule",
    "resume",
    "run_now",
}
BROKER |= {"schedules", "select", "show"}


def public_names(of: object) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


@on_both
async def test_objects_of_a_client_show_only_names_for_users() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"a"], [0])
            batch = await inbox.next_batch()
            assert batch is not None
            assert public_names(broker) == BROKER
            assert public_names(producer) == PRODUCER | {"aclose"}
            assert public_names(inbox) == INBOX | {"aclose"}
            assert public_names(batch) == BATCH
            assert public_names(batch[0]) == MESSAGE
            assert public_names(broker.read("t")) == {"topic"}
            assert public_names(await producer.submit(b"b")) == {"wait"}


def test_blocking_client_shows_only_names_for_users() -> None:
    assert dir(escapement.sync) == sorted(escapement.sync.__all__)


@pytest.mark.parametrize("module", [escapement, escapement.sync])
def test_results_of_public_methods_have_public_classes(module: Any) -> None:
    """The methods themselves describe the iterators that some of them return."""
    public = {getattr(escapement, name) for name in escapement.__all__}
    public |= {getattr(escapement.sync, name) for name in escapement.sync.__all__}
    found = {
        result
        for name in module.__all__
        if inspect.isclass(kind := getattr(module, name))
        for _, method in inspect.getmembers(kind, inspect.isfunction)
        if not method.__name__.startswith("_")
        for result in classes(get_type_hints(method).get("return"))
    }
    assert {one.__name__ for one in found - public} <= {"Batches", "Peeking", "Reading"}


def classes(hint: Any) -> Iterator[type]:
    """Yield the classes of escapement in a type."""
    if inspect.isclass(hint) and hint.__module__.startswith("escapement."):
        yield hint
    for part in get_args(hint):
        yield from classes(part)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        (escapement.Broker, ["name", "limits", "connected"]),
        (escapement.sync.Broker, ["name", "limits", "connected"]),
        (escapement.Producer, ["name", "topic", "next_sequence", "waits_for"]),
        (escapement.sync.Producer, ["name", "topic", "next_sequence", "waits_for"]),
        (escapement.Inbox, ["active", "fields", "name", "topic", "subscription"]),
        (escapement.sync.Inbox, ["active", "fields", "name", "topic", "subscription"]),
        (escapement.Groups, []),
        (escapement.sync.Groups, []),
        (escapement.Schedules, []),
        (escapement.sync.Schedules, []),
        (escapement.Pending, []),
        (escapement.MessageBuilder, []),
    ],
)
def test_help_has_all_attributes_and_no_parameters_of_a_constructor(
    kind: type, attributes: list[str]
) -> None:
    """Applications get these objects from methods, and do not call the classes."""
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    for name in attributes:
        assert re.search(rf"^ \|  +{name}(:|$)", text, re.MULTILINE), name
    assert f"{kind.__name__}(" not in text.replace(f"class {kind.__name__}(", "")
    assert "__init__(self, /)" in text
