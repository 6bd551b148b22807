"""The protocol's state machine: which side may send what and when, and which errors it raises."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.dedup import digests
from escapement.errors import (
    Busy,
    LocalProtocolError,
    ProducerFenced,
    ProtocolError,
    RemoteProtocolError,
)
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as c
from escapement.protocol import limits
from escapement.protocol.connection import CLOSED, NEED_DATA, Connection, State

BODY = MessageBatch(Blobs.of([b"one", b"two", b"three"])).encode()
COLUMN = np.array([7, 8, 9], np.int64)
DIGESTS = digests(["one", None, "three"])
HELLO = c.Hello(limits.PROTOCOL_VERSION, "test", {"zstd": False})
WELCOME = c.Welcome(limits.PROTOCOL_VERSION, "b", "b-1", {limits.LIMIT_FRAME_BYTES: 1 << 20})

# At least one of every command.
SAMPLES: list[c.Command] = [
    c.Ping(3),
    c.Pong(3),
    c.Refused(1, 0, -1, "busy", "later", True),
    c.Done(4),
    c.OpenProducer(1, 1, "t", "", -1),
    c.ProducerReady(1, 1, "persistent://public/default/t", "p", 2, -1),
    c.Publish(1, 0, -1, None, None, BODY),
    c.Publish(1, 5, 3, COLUMN, COLUMN, BODY),
    c.Receipt(1, 5, 3, 100, False),
    c.Publish(1, 5, 3, None, None, BODY, DIGESTS),
    c.Receipt(1, 5, 3, -1, True, COLUMN, np.array([1, 0, 1], np.uint8)),
    c.Find(4, "t", DIGESTS),
    c.Found(4, COLUMN),
    c.CloseProducer(2, 1),
    c.ProducerClosed(1, "producer_fenced", "newer", False),
    c.Subscribe(3, 1, "t", "s", "shared", "latest", 0, ""),
    c.ConsumerReady(3, 1, "persistent://public/default/t", "shared"),
    c.Flow(1, 1000),
    c.Deliver(1, COLUMN, COLUMN, None, None, BODY),
    c.Deliver(1, COLUMN, COLUMN, np.array([1, 2, 3], np.uint16), np.ones(3, np.uint8), BODY),
    c.Ack(0, 1, COLUMN),
    c.Ack(5, 1, None, COLUMN, COLUMN + 1),
    c.Nack(6, 1, COLUMN, -1),
    c.Acked(5, 3),
    c.CloseConsumer(7, 1),
    c.CloseConsumer(7, 1, COLUMN),
    c.Extend(8, 1, COLUMN, 30_000),
    c.Release(0, 1, COLUMN, 0),
    c.ConsumerActive(1, True),
    c.ConsumerClosed(1, "not_found", "gone", False),
    c.ConsumerRewound(1),
    c.Halt(10, 1),
    c.Cancel(8, "t", COLUMN),
    c.Reschedule(8, "t", COLUMN, 5, -1),
    c.Reschedule(8, "t", COLUMN, -1, -1),
    c.Amended(8, np.array([0, 1, 2], np.uint8), {"s": b"\x80"}),
    c.Read(9, "t", 0, -1, 1000),
    c.Page(9, "public/default/t", 3, 3, COLUMN, COLUMN, COLUMN, BODY),
    c.Page(9, "public/default/t", 3, 3, COLUMN[:0], COLUMN[:0], COLUMN[:0], b""),
    c.Admin(8, "topics.list", {"namespace": "public/default", "deep": [{"a": [1, 2.5, None]}]}),
    c.AdminReply(8, ["a", {"b": b"c"}]),
    c.Goodbye("done"),
]


def pump(sender: Connection, receiver: Connection, *commands: c.Command) -> list[c.Command]:
    for command in commands:
        for buffer in sender.send(command):
            receiver.receive_data(buffer)
    return list(receiver.events())


def open_pair() -> tuple[Connection, Connection]:
    client, broker = Connection("client"), Connection("broker")
    assert pump(client, broker, HELLO) == [HELLO]
    assert pump(broker, client, WELCOME) == [WELCOME]
    return client, broker


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            if y is None or x.tolist() != y.tolist():
                return False
        elif x != y:
            return False
    return True


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_every_command_arrives_as_it_was_sent(sample: c.Command) -> None:
    for role in sample.SENDERS:
        client, broker = open_pair()
        ends = (client, broker) if role == "client" else (broker, client)
        (arrived,) = pump(*ends, sample)
        assert same(arrived, sample)


def test_every_command_has_a_sample() -> None:
    shown = {type(s) for s in SAMPLES} | {c.Hello, c.Welcome}
    assert shown == set(c.COMMANDS.values())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_command_of_the_wrong_side_is_neither_sent_nor_accepted(sample: c.Command) -> None:
    if len(sample.SENDERS) == 2:
        return
    client, broker = open_pair()
    wrong, other = (broker, client) if "client" in sample.SENDERS else (client, broker)
    with pytest.raises(LocalProtocolError):
        wrong.send(sample)
    packed = msgpack.packb(sample.write())
    other.receive_data(len(packed).to_bytes(4, "big") + packed)
    with pytest.raises(RemoteProtocolError, match="does not send"):
        other.next_event()


def test_commands_before_the_handshake_are_not_sent() -> None:
    client, broker = Connection("client"), Connection("broker")
    with pytest.raises(LocalProtocolError):
        client.send(c.Ping(1))
    with pytest.raises(LocalProtocolError):
        broker.send(WELCOME)
    client.send(HELLO)
    with pytest.raises(LocalProtocolError):
        client.send(c.Flow(1, 1))
    with pytest.raises(LocalProtocolError):
        client.send(HELLO)
    assert client.state is State.HELLO


def test_a_second_hello_ends_the_connection() -> None:
    client, broker = open_pair()
    stranger = Connection("client")
    for buffer in stranger.send(HELLO):
        broker.receive_data(buffer)
    with pytest.raises(RemoteProtocolError, match="after the handshake"):
        broker.next_event()
    with pytest.raises(RemoteProtocolError, match="dead"):
        broker.receive_data(b"x")
    assert broker.closed
    assert not client.closed


def test_hello_of_another_version_is_refused_with_a_reason() -> None:
    client, broker = Connection("client"), Connection("broker")
    client.send(HELLO)
    packed = msgpack.packb([c.Hello.TYPE, 99, "fields", "we", "do", "not", "know"])
    broker.receive_data(len(packed).to_bytes(4, "big") + packed)
    with pytest.raises(RemoteProtocolError, match="version 99") as caught:
        broker.next_event()
    for buffer in broker.last_words(caught.value):
        client.receive_data(buffer)
    (refused,) = client.events()
    assert isinstance(refused, c.Refused)
    assert (refused.request_id, refused.code) == (0, "protocol_error")
    assert isinstance(refused.error(), ProtocolError)
    assert broker.last_words(caught.value) == []


def test_large_frame_before_the_handshake_is_refused() -> None:
    broker = Connection("broker")
    broker.receive_data((limits.MAX_HANDSHAKE_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="outside"):
        broker.next_event()


def test_a_frame_past_the_brokers_limit_is_not_sent() -> None:
    client, _ = open_pair()
    with pytest.raises(LocalProtocolError, match="over 1048576"):
        client.send(c.Publish(1, 0, -1, None, None, bytes(1 << 20)))
    client.send(c.Ping(1))


def test_a_large_frame_of_plain_values_is_refused() -> None:
    _, broker = open_pair()
    packed = msgpack.packb([c.Admin.TYPE, 1, "v", {"a": bytes(limits.MAX_PLAIN_BYTES)}])
    broker.receive_data(len(packed).to_bytes(4, "big") + packed)
    with pytest.raises(RemoteProtocolError, match="Admin has"):
        broker.next_event()


@pytest.mark.parametrize(
    "values",
    [
        [c.Ping.TYPE, -1],
        [c.Ping.TYPE, 2**63],
        [c.Ping.TYPE, True],
        [c.Ping.TYPE, 1.0],
        [c.Ping.TYPE],
        [c.Ping.TYPE, 1, 2],
        [99, 1],
        [c.OpenProducer.TYPE, 0, 1, "t", "", -1],
        [c.OpenProducer.TYPE, 1, 1, "", "", -1],
        [c.OpenProducer.TYPE, 1, 1, "t" * 641, "", -1],
        [c.OpenProducer.TYPE, 1, 1, b"t", "", -1],
        [c.Subscribe.TYPE, 1, 1, "t", "s", "queue", "latest", 0, ""],
        [c.Flow.TYPE, 1, 0],
        [c.Flow.TYPE, 1, limits.MAX_PERMITS + 1],
        [c.Publish.TYPE, 1, 0, -1, b"1234567", None, BODY],
        [c.Publish.TYPE, 1, 0, -1, np.array([-2], "<i8").tobytes(), None, BODY],
        [c.Publish.TYPE, 1, 0, -1, None, None, "text"],
        [c.Publish.TYPE, 1, 0, -1, None, bytes(8 * (limits.MAX_BATCH_MESSAGES + 1)), BODY],
        [c.Publish.TYPE, 1, 5, 5, None, None, BODY],
        [c.Ack.TYPE, 0, 1, None, None, None],
        [c.Ack.TYPE, 0, 1, None, bytes(8), None],
        [c.Ack.TYPE, 0, 1, None, bytes(8), bytes(8)],
        [c.Ack.TYPE, 0, 1, None, bytes(8), b"\x01".ljust(16, b"\0")],
        [c.Nack.TYPE, 0, 1, None, 0],
        [c.Admin.TYPE, 1, "v", [1]],
        [c.Admin.TYPE, 1, "v", {1: 2}],
        [c.Admin.TYPE, 1, "v", {"a": [[[[[[[[[1]]]]]]]]]}],
        [c.Admin.TYPE, 1, "v", {"a": msgpack.ExtType(5, b"")}],
    ],
    ids=repr,
)
def test_invalid_field_ends_the_connection(values: list[Any]) -> None:
    _, broker = open_pair()
    packed = msgpack.packb(values)
    broker.receive_data(len(packed).to_bytes(4, "big") + packed)
    with pytest.raises(RemoteProtocolError):
        broker.next_event()


def test_command_with_an_invalid_field_is_not_sent_and_changes_nothing() -> None:
    client, broker = open_pair()
    for bad in (
        c.Ping(-1),
        c.OpenProducer(1, 1, "t" * 700, "", -1),
        c.Ack(0, 1, None),
        c.Admin(1, "v", {"a": object()}),
        c.Admin(1, "v", {"a": 2**70}),
        c.Nack(0, 1, np.zeros(limits.MAX_ACK_ROWS + 1, np.int64), -1),
    ):
        with pytest.raises(LocalProtocolError):
            client.send(bad)
    assert pump(client, broker, c.Ping(1)) == [c.Ping(1)]


def test_body_with_another_number_of_rows_than_its_columns_is_refused() -> None:
    short = MessageBatch(Blobs.of([b"x"])).encode()
    empty = MessageBatch(Blobs.of([])).encode()
    for publish in (
        c.Publish(1, 0, -1, COLUMN, None, short),
        c.Publish(1, 0, -1, None, COLUMN, short),
        c.Publish(1, 0, -1, None, None, empty),
        c.Publish(1, 0, -1, None, None, BODY + b"x"),
    ):
        with pytest.raises(RemoteProtocolError):
            publish.decode()
    with pytest.raises(RemoteProtocolError):
        c.Deliver(1, COLUMN, COLUMN, None, None, short).decode()


def test_after_goodbye_a_side_sends_nothing_more() -> None:
    client, broker = open_pair()
    assert pump(client, broker, c.Goodbye("bye")) == [c.Goodbye("bye")]
    assert broker.next_event() is CLOSED
    assert broker.closed
    with pytest.raises(LocalProtocolError):
        client.send(c.Ping(1))
    # The other direction is still open for answers.
    assert pump(broker, client, c.Receipt(1, 0, 1, 5, False))
    with pytest.raises(RemoteProtocolError):
        broker.receive_data(b"x")


def test_end_of_stream_is_an_error_only_inside_a_frame() -> None:
    client, broker = open_pair()
    assert broker.next_event() is NEED_DATA
    broker.receive_data(b"")
    assert broker.next_event() is CLOSED
    client.receive_data(b"\0\0")
    assert client.next_event() is NEED_DATA
    client.receive_data(b"")
    with pytest.raises(RemoteProtocolError, match="middle of a frame"):
        client.next_event()


def test_refusal_carries_its_error_to_the_other_side() -> None:
    refused = c.Refused.because(ProducerFenced("x" * 9000), producer_id=3, sequence=7)
    assert isinstance(refused.error(), ProducerFenced)
    assert len(refused.message) == limits.MAX_MESSAGE_CHARS
    assert refused.write()
    assert c.Refused.because(Busy("later")).error().retryable
    unknown = c.Refused(1, 0, -1, "of_tomorrow", "hm", True).error()
    assert unknown.retryable
    assert str(unknown) == "hm"


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    """Draw valid frames in which bytes are changed, removed, repeated or inserted."""
    chosen = draw(st.lists(st.sampled_from(SAMPLES), max_size=4))
    parts = [HELLO, *chosen] if draw(st.booleans()) else chosen
    stream = bytearray()
    for command in parts:
        packed = msgpack.packb(command.write())
        stream += len(packed).to_bytes(4, "big") + packed
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(stream)))
        match draw(st.integers(0, 3)):
            case 0 if stream:
                stream[min(at, len(stream) - 1)] = draw(st.integers(0, 255))
            case 1:
                del stream[at : at + draw(st.integers(1, 8))]
            case 2:
                stream[at:at] = draw(st.binary(max_size=8))
            case _:
                stream += stream[at : at + 30]
    return bytes(stream)


@settings(max_examples=300)
@given(
    st.sampled_from(["client", "broker"]),
    st.booleans(),
    st.one_of(st.binary(max_size=300), damaged_streams()),
    st.integers(1, 400),
)
def test_damaged_stream_raises_only_remote_protocol_error(
    role: Any, greeted: bool, stream: bytes, cut: int
) -> None:
    if greeted:
        client, broker = open_pair()
        end = client if role == "client" else broker
    else:
        end = Connection(role)
    try:
        for at in range(0, len(stream), cut):
            end.receive_data(stream[at : at + cut])
            for event in end.events():
                if isinstance(event, c.Publish | c.Deliver):
                    event.decode()
        end.receive_data(b"")
        while end.next_event() not in (NEED_DATA, CLOSED):
            pass
    except RemoteProtocolError:
        pass
