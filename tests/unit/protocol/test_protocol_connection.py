"""The protocol's state machine: which side may send what and when, and which errors it raises."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from escapement.protocol import commands as c
from escapement.protocol import limits
from escapement.protocol.connection import CLOSED, NEED_DATA, Connection, State
from support.messages.command_samples import HELLO, SAMPLES, WELCOME, open_pair, pump

OF_ONE_SIDE = [sample for sample in SAMPLES if len(sample.SENDERS) == 1]


@pytest.mark.parametrize("sample", OF_ONE_SIDE, ids=lambda s: type(s).__name__)
def test_command_of_the_wrong_side_is_neither_sent_nor_accepted(sample: c.Command) -> None:
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
