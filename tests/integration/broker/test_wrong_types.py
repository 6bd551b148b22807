"""Arguments of wrong types: the broker refuses each by name and keeps running."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Final

import anyio
import msgpack
import numpy as np
import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.admin.admin import VERBS
from escapement.dedup import digests
from escapement.errors import EscapementError, InvalidRequest
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from escapement.storage.catalog.policy import (
    NamespacePolicy,
    Policy,
    SubscriptionPolicy,
    TopicPolicy,
)
from support.verb_arguments import TAKEN

ADMIN: Final = Path(__file__).parents[3] / "src/escapement/broker/admin"

ODD: Final[list[Any]] = [
    None, True, False, 0, -1, 1 << 40, (1 << 64) - 1, 0.5, -1.5,
    float("nan"), float("inf"), "", "x", "x" * 5_000, "\x00", "a/b/c/d", "7", "yes", b"", b"x",
    b"\xff\x00", [], [0], [-1], [1, 2], ["a"], [None], [[]], {}, {"a": 1}, {"": None}, {"a": [{}]},
    253_402_300_799_999,
    *(n for bits in (31, 53, 62, 63) for n in ((1 << bits) - 1, 1 << bits, -(1 << bits))),
]  # fmt: skip


def fits(value: Any, types: tuple[type, ...]) -> bool:
    """Return whether a value has exactly one of the types, so that True is not a number."""
    return type(value) in types


@pytest.mark.parametrize("verb", TAKEN)
async def test_an_argument_of_a_wrong_type_is_refused_by_name(
    verb: str, mock_clock: trio.testing.MockClock
) -> None:
    """Odd values of a permitted type are accepted or refused. The connection stays open.

    An object made with an accepted value can be shown.
    """
    right = {name: value for name, (value, _) in TAKEN[verb].items() if value is not None}
    async with testing.start() as world, world.connect() as broker:
        await begin(broker)
        for name, (_, types) in TAKEN[verb].items():
            for value in ODD:
                given = right | {name: value}
                if name == "until_ms":
                    given.pop("for_ms", None)
                try:
                    await broker.admin(verb, **given)
                    error = None
                except EscapementError as refused:
                    error = refused
                assert broker.connected, (name, value)
                where = f"{verb} {name}={value!r:.40}: {error!r:.200}"
                if not fits(value, types):
                    assert type(error) is InvalidRequest, where
                    assert name in str(error), where
                assert error is None or type(error) is not EscapementError, where
                if error is None:
                    await show_and_delete_new(broker)
        with pytest.raises(InvalidRequest, match="does not take"):
            await broker.admin(verb, **right, surprise=1)
        await broker.admin("broker.stats")
        assert broker.connected


async def begin(broker: escapement.Broker) -> None:
    """Create a topic with a message, a subscription, a group and a schedule."""
    await broker.admin("subscriptions.create", topic="t", subscription="s")
    producer = await broker.producer("t")
    await producer.send(b"0", group="g", delay="1h")
    await broker.schedules.create("public/default/again", "t", every="1h")


async def show_and_delete_new(broker: escapement.Broker) -> None:
    for schedule in await broker.admin("schedules.list"):
        await broker.admin("schedules.get", schedule=schedule["schedule"])
        if schedule["schedule"] == "public/default/new":
            await broker.admin("schedules.delete", schedule=schedule["schedule"])
    for group in await broker.admin("groups.list", topic="t"):
        if group["completions"]:
            await broker.admin("groups.delete", topic="t", group=group["group"])
    await broker.admin("topics.get", topic="t")


def test_table_of_arguments_is_complete() -> None:
    """TAKEN has every verb, and every argument that the code of the verbs reads."""
    source = "".join(path.read_text() for path in ADMIN.glob("*.py"))
    taken = set(re.findall(r'given\.\w+\("(\w+)"', source))
    assert TAKEN.keys() == VERBS.keys()
    assert taken == {name for arguments in TAKEN.values() for name in arguments}


KINDS: Final = (NamespacePolicy, TopicPolicy, SubscriptionPolicy)


@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in KINDS for name in k.names()])
def test_a_field_of_a_policy_takes_no_value_of_another_type(kind: type[Policy], name: str) -> None:
    """V4, V18: text can stand for a number. Booleans, lists and maps are refused."""
    usual = getattr(kind(), name)
    right: tuple[type, ...] = (type(usual), str, type(None))
    if type(usual) is float:
        right = (*right, int)
    for value in ODD:
        try:
            taken = getattr(kind().updated({name: value}), name)
        except InvalidRequest as error:
            refused = str(error)
        else:
            refused = None
        if refused is not None:
            assert name in refused, (name, value)
            continue
        assert fits(value, right), (name, value, taken)
        assert type(taken) is type(usual), (name, value, taken)
        again = kind.decode(kind().updated({name: value}).encode())
        assert getattr(again, name) == taken


# -- the client --------------------------------------------------------------------------

# Client calls, with a valid value for each argument.
CALLS: Final[dict[str, dict[str, Any]]] = {
    "send": {
        "value": b"x", "key": None, "properties": None, "priority": 50, "delay": None, "at": None,
        "dedup": None, "group": None, "spread": None,
    },
    "send_many": {
        "values": [b"x"], "keys": None, "properties": None, "priorities": None, "delay": None,
        "at": None, "dedup": None, "groups": None, "spread": None,
    },
    "send_batch": {"batch": None},
    "producer": {"topic": "t", "name": None, "serializer": bytes},
    "consumer": {
        "topic": "t", "subscription": "s2", "kind": "shared", "position": "latest", "permits": 9,
        "ack_wait": None, "serializer": bytes, "name": "", "key_range": None,
    },
    "cancel": {"what": [0], "topic": "t"},
    "cancel by dedup": {"topic": "t", "dedup": "a"},
    "cancel by key": {"topic": "t", "key": "a"},
    "reschedule": {"what": [0], "topic": "t", "delay": "1h"},
    "reschedule at": {"what": [0], "topic": "t", "at": None, "spread": None},
    "run_now": {"what": [0], "topic": "t", "spread": None},
    "select": {"topic": "t", "due_from": None, "due_until": None, "key": None, "properties": None},
    "peek": {
        "topic": "t", "count": 9, "due_from": None, "due_until": None, "key": None, "offset": None,
        "properties": None,
    },
    "show": {"message": 0, "topic": "t"},
    "find": {"topic": "t", "dedup": "a"},
    "forecast": {"topic": "t", "by": (1, "hour"), "within": (1, "day"), "origin": None},
    "forecast_namespace": {"namespace": "public/default", "by": (1, "hour"), "within": "1d"},
    "groups.close": {
        "topic": "t", "group": "g", "subscription": "s", "then": escapement.FollowUp(b"", "u"),
    },
    "follow-up": {
        "value": b"", "topic": "u", "key": None, "properties": None, "priority": 50, "delay": None,
        "at": None, "serializer": bytes,
    },
    "schedules.create": {
        "name": "public/default/z", "topic": "t", "every": "1h", "timezone": "UTC", "until": None,
        "value": b"", "key": None, "missed": "skip", "spread": None,
    },
    "schedules.update": {
        "name": "public/default/again", "every": "2h", "until": None, "value": b"", "key": None,
        "missed": "skip", "spread": None, "topic": None,
    },
    "schedules.next": {"name": "public/default/again", "count": 3},
    "schedules.run_now": {"name": "public/default/again"},
    "schedules.create cron": {"name": "public/default/y", "topic": "t", "cron": "* * * * *"},
    "ack": {"what": 0},
    "nack": {"what": 0, "delay": None},
    "reject": {"what": 0},
    "release": {"what": 0, "delay": None},
    "extend": {"what": 0, "wait": "1m"},
    "seek": {"where": "latest"},
    "ack_rows": {"table": "shop.mails", "ids": [7]},
    "admin": {"verb": "broker.stats"},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
async def test_client_call_with_a_wrong_type_raises_our_error_and_keeps_the_connection(
    name: str, mock_clock: trio.testing.MockClock
) -> None:
    """V17, N2: the client or the broker raises an ``EscapementError``, never another error."""
    async with testing.start() as world, world.connect() as broker:
        await begin(broker)
        producer = await broker.producer("t")
        for argument in CALLS[name]:
            for value in ODD:
                given = {one: v for one, v in CALLS[name].items() if v is not None}
                with contextlib.suppress(EscapementError):
                    await call(name, broker, producer, {**given, argument: value})
                assert broker.connected, (argument, value)
        await broker.admin("broker.stats")


async def call(
    name: str, broker: escapement.Broker, producer: escapement.Producer, given: dict[str, Any]
) -> None:
    method = name.split()[0]
    if method in ("send", "send_many", "send_batch"):
        await getattr(producer, method)(**given)
    elif method == "producer":
        await (await broker.producer(**given)).aclose()
    elif method == "consumer":
        async with broker.consumer(**given):
            pass
    elif method in ("ack", "nack", "reject", "release", "extend", "seek"):
        async with broker.consumer("t", "s3") as inbox:
            await getattr(inbox, method)(*given.values())
    elif method == "peek":
        async for _ in broker.peek(**given):
            pass
    elif method == "follow-up":
        await broker.groups.close("t", "g", "s", escapement.FollowUp(**given))
    elif method == "admin":
        await broker.admin(**given)
    else:
        owner: Any = broker
        for part in method.split("."):
            owner = getattr(owner, part)
        await owner(**given)


# -- the wire ----------------------------------------------------------------------------

ONE: Final = escapement.MessageBatch(escapement.Blobs.of([b"x"])).encode()
FIRST: Final = np.zeros(1, np.int64)
# Valid commands of a client; producer 1 and consumer 1 are open.
SAID: Final[list[wire.Command]] = [
    wire.Ping(3),
    wire.OpenProducer(7, 2, "t", "", -1),
    wire.Publish(1, 0, -1, None, None, ONE),
    wire.Publish(1, 0, -1, FIRST, None, ONE),
    wire.Find(7, "t", digests(["one"])),
    wire.CloseProducer(7, 1),
    wire.Subscribe(7, 2, "t", "s", "shared", "latest", 0, ""),
    wire.Flow(1, 1000),
    wire.Ack(7, 1, FIRST),
    wire.Ack(7, 1, None, FIRST, FIRST + 1),
    wire.Nack(7, 1, FIRST, -1),
    wire.Reject(7, 1, FIRST),
    wire.Extend(7, 1, FIRST, 30_000),
    wire.Release(7, 1, FIRST, 0),
    wire.Halt(7, 1),
    wire.CloseConsumer(7, 1, FIRST),
    wire.Cancel(7, "t", FIRST),
    wire.Reschedule(7, "t", FIRST, 5, -1, 0),
    wire.Reschedule(7, "t", FIRST, -1, 5, 0),
    wire.Read(7, "t", 0, -1, 1000),
    wire.Admin(7, "topics.get", {"topic": "t"}),
    wire.Lookup(7, "t"),
    wire.Goodbye("done"),
]
COLUMNS: Final = [
    column.astype("<i8").tobytes()
    for column in (
        np.array([-1]), np.array([(1 << 63) - 1]), np.array([-(1 << 63)]), np.array([5, 5, 0]),
    )
]  # fmt: skip
PROBE: Final = 999


async def test_text_that_utf_8_cannot_encode_is_refused_before_it_is_sent(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Python strings can have lone surrogates, for example in file names."""
    odd = "a\udcff"
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("t")
        calls = [
            lambda: producer.send(b"x", key=odd),
            lambda: producer.send(b"x", dedup=odd),
            lambda: producer.send(b"x", properties={"a": odd}),
            lambda: producer.send(b"x", group=odd),
            lambda: producer.send_many([b"x"], keys=[odd]),
            lambda: producer.send_many([b"x"], dedup=[odd]),
            lambda: broker.find("t", odd),
            lambda: broker.ack_rows("shop.mails", [odd]),
            lambda: broker.cancel(topic="t", key=odd),
            lambda: broker.cancel(topic="t", dedup=odd),
            lambda: broker.schedules.create("s", "t", every="1m", key=odd),
            lambda: broker.admin("dlq.list", topic="t", subscription=odd),
        ]
        for call in calls:
            with pytest.raises(InvalidRequest, match="udcff"):
                await call()
        assert (await producer.send(b"goes on")).id.offset == 0


@pytest.mark.parametrize("said", SAID, ids=lambda said: type(said).__name__)
async def test_command_with_a_wrong_type_is_answered_or_ends_the_connection_with_a_reason(
    said: wire.Command, mock_clock: trio.testing.MockClock
) -> None:
    """protocol.md: a protocol error ends the connection with a reason; others are answered."""
    right = list(said.write())
    async with testing.start() as world, world.connect() as broker:
        await begin(broker)
        for index in range(1, len(right)):
            for value in [*ODD, *COLUMNS]:
                with contextlib.suppress(OverflowError):
                    frame = msgpack.packb([*right[:index], value, *right[index + 1 :]])
                heard = await answers(world, frame)
                where = (type(said).__name__, index, value, heard)
                if any(isinstance(one, wire.AdminReply) for one in heard):
                    continue
                assert heard, where
                if isinstance(said, wire.Goodbye):
                    continue
                last = heard[-1]
                assert isinstance(last, wire.Refused), where
                assert last.code == "protocol_error", where
                assert last.message, where
                assert broker.connected, where
        await broker.admin("broker.stats")


def test_table_of_commands_is_complete() -> None:
    """SAID has every command that a client may send after the handshake."""
    may_be_said = {kind for kind in wire.COMMANDS.values() if "client" in kind.SENDERS}
    assert {type(said) for said in SAID} == may_be_said - {wire.Hello, wire.Pong}


async def answers(world: testing.World, frame: bytes) -> list[wire.Command]:
    """Send a frame and a probe. Return the commands up to the probe's answer or the end."""
    protocol = Connection("client")
    stream = await world._open_stream()

    async def say(*commands: wire.Command) -> None:
        for command in commands:
            await stream.send(b"".join(protocol.send(command)))

    await say(wire.Hello(PROTOCOL_VERSION, "peer", {}))
    heard: list[wire.Command] = []
    try:
        while not any(isinstance(one, wire.Welcome) for one in protocol.events()):
            protocol.receive_data(await stream.receive())
        await say(
            wire.OpenProducer(1, 1, "t", "", -1),
            wire.Subscribe(2, 1, "t", "s", "shared", "latest", 0, ""),
            wire.Flow(1, 10),
        )
        await stream.send(len(frame).to_bytes(4, "big") + frame)
        await say(wire.Admin(PROBE, "broker.stats", {}))
        while True:
            protocol.receive_data(await stream.receive())
            for event in protocol.events():
                heard.append(event)
                if isinstance(event, wire.AdminReply) and event.request_id == PROBE:
                    return heard
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return heard
    finally:
        await stream.aclose()
