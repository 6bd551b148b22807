"""Invalid input from a peer: it gets a clear error, and no other client is disturbed.

Every test talks to one real broker over TCP, and sends raw bytes if the protocol objects cannot
produce the input. Meanwhile a second client publishes and receives on its own connection, which
must not notice anything.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import pytest
import trio

import escapement
from escapement.errors import RemoteProtocolError
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import MAX_FRAME_BYTES, MAX_INT64, PROTOCOL_VERSION
from support.processes.broker import PATIENT, BrokerProcess, broker_process

TIMEOUT_S: Final = 60
LENGTH: Final = struct.Struct(">I")
ONE: Final = escapement.MessageBatch(escapement.Blobs.of([b"x"])).encode()
TWO: Final = escapement.MessageBatch(escapement.Blobs.of([b"x", b"y"])).encode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests, which has to survive all of their input."""
    data = tmp_path_factory.mktemp("bad-input") / "broker"
    with broker_process(data, None, "--max-delay", "1d") as process:
        yield process
        assert "Traceback" not in process.complaints(), process.complaints()


class Peer:
    """A connection on which a test sends any commands or bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.protocol = Connection("client")

    async def greet(self) -> None:
        await self.say(wire.Hello(PROTOCOL_VERSION, "peer", {}))
        assert isinstance(await self.hear(), wire.Welcome)

    async def say(self, *commands: wire.Command) -> None:
        await self.stream.send_all(b"".join([b"".join(self.protocol.send(c)) for c in commands]))

    async def hear(self) -> Any:
        """Return the next command, or None when the broker has closed the connection."""
        with trio.fail_after(TIMEOUT_S):
            while True:
                event = self.protocol.next_event()
                if isinstance(event, wire.Command):
                    return event
                if self.protocol.closed:
                    return None
                try:
                    self.protocol.receive_data(await self.stream.receive_some(65536))
                except trio.BrokenResourceError:
                    return None

    async def last_words(self) -> list[wire.Command]:
        """Return all commands until the broker closes the connection."""
        said = []
        while (command := await self.hear()) is not None:
            said.append(command)
        return said


@asynccontextmanager
async def peer_of(broker: BrokerProcess, *, greeted: bool = True) -> AsyncIterator[Peer]:
    async with await trio.open_tcp_stream("127.0.0.1", broker.port) as stream:
        peer = Peer(stream)
        if greeted:
            await peer.greet()
        yield peer


@asynccontextmanager
async def undisturbed(broker: BrokerProcess) -> AsyncIterator[None]:
    """Check that another client keeps its connection while the ``with`` block runs."""
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        producer = await client.producer("calm")
        async with client.consumer("calm", "calm") as inbox:
            link = client._lines.first.link
            await round_trip(producer, inbox)
            yield
            await round_trip(producer, inbox)
            assert client._lines.first.link is link, "its connection was lost"


async def round_trip(producer: escapement.Producer, inbox: escapement.Inbox) -> None:
    receipt = await producer.send(b"still here")
    with trio.fail_after(TIMEOUT_S):
        async for message in inbox:
            await message.ack()
            if message.id == receipt.id:
                return


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


HELLO: Final = framed(msgpack.packb([1, PROTOCOL_VERSION, "peer", {}]))
BOMB: Final = framed(b"\x95\x28\x01\xa1v" + b"\x91" * 20_000 + b"\xc0")
GARBAGE: Final = {
    "zero length": framed(b""),
    "one byte": framed(b"\x90"),
    "larger than any frame": LENGTH.pack(MAX_FRAME_BYTES + 1),
    "largest length there is": b"\xff" * 64,
    "not msgpack": framed(b"\x92\x0c\xc1"),
    "text instead": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an unknown type": framed(b"\x91\x7f"),
    "a broker's command": framed(msgpack.packb([26, 1, 1])),
    "too few fields": framed(b"\x91\x0c"),
    "too many fields": framed(msgpack.packb([30, *range(14)])),
    "a nesting bomb": BOMB,
    "wide maps": framed(msgpack.packb([40, 1, "x", {str(n): {} for n in range(5_000)}])),
    "no UTF-8": framed(b"\x94\x28\x01\xa2\xff\xfe\x80"),
    "a second hello": HELLO,
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_is_refused_with_a_reason_and_disturbs_no_other_client(
    broker: BrokerProcess, what: str
) -> None:
    """Bytes that are not a command end their connection with an error that says why."""
    async with undisturbed(broker):
        async with peer_of(broker) as peer:
            await peer.stream.send_all(GARBAGE[what])
            last = (await peer.last_words())[-1]
            assert isinstance(last, wire.Refused)
            assert isinstance(last.error(), RemoteProtocolError | escapement.ProtocolError)
            assert len(last.message) > 10


@pytest.mark.parametrize("what", [name for name in GARBAGE if name != "a second hello"])
async def test_garbage_before_the_handshake_is_refused_too(
    broker: BrokerProcess, what: str
) -> None:
    """Garbage instead of a hello also ends the connection."""
    async with undisturbed(broker):
        async with peer_of(broker, greeted=False) as peer:
            await peer.stream.send_all(GARBAGE[what])
            await peer.stream.send_eof()
            while await peer.stream.receive_some(65536):
                pass


async def test_wrong_protocol_version_is_refused_with_the_right_one(broker: BrokerProcess) -> None:
    async with undisturbed(broker), peer_of(broker, greeted=False) as peer:
        hello = msgpack.packb([1, PROTOCOL_VERSION + 41, "from the future", {}])
        await peer.stream.send_all(framed(hello))
        reply = b""
        while piece := await peer.stream.receive_some(65536):
            reply += piece
        assert b"version" in reply


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
async def test_incomplete_frame_disturbs_no_other_client(broker: BrokerProcess, cut: int) -> None:
    async with undisturbed(broker), peer_of(broker) as peer:
        whole = framed(msgpack.packb([40, 1, "broker.stats", {}]))
        await peer.stream.send_all(whole[:cut])
        await peer.stream.send_eof()
        await peer.last_words()


async def test_peer_that_disconnects_during_its_requests_disturbs_no_other_client(
    broker: BrokerProcess,
) -> None:
    """The subscriptions and producers become durable after their peer has disconnected."""
    async with undisturbed(broker):
        for attempt in range(20):
            async with peer_of(broker) as peer:
                topic = f"vanishing/a/t{attempt}"
                await peer.say(
                    wire.Subscribe(1, 1, topic, "s", "exclusive", "earliest", 0, ""),
                    wire.OpenProducer(2, 2, topic, "p", -1),
                    wire.Subscribe(3, 3, topic, "s", "exclusive", "earliest", 0, ""),
                )
        with trio.fail_after(TIMEOUT_S):
            async with escapement.connect(broker.url, settings=PATIENT) as client:
                async with client.consumer("vanishing/a/t0", "s", kind="exclusive"):
                    pass


async def test_duplicate_consumer_and_producer_ids_are_refused(
    broker: BrokerProcess,
) -> None:
    """Also while the request with the same id is still being handled."""
    async with undisturbed(broker):
        async with peer_of(broker) as peer:
            await peer.say(
                wire.Subscribe(1, 7, "twice/a/t", "s", "failover", "latest", 0, ""),
                wire.Subscribe(2, 7, "twice/a/t", "s", "failover", "latest", 0, ""),
                wire.OpenProducer(3, 8, "twice/a/t", "p", -1),
                wire.OpenProducer(4, 8, "twice/a/t", "q", -1),
            )
            heard = [await peer.hear() for _ in range(5)]
        refused = {c.request_id for c in heard if isinstance(c, wire.Refused)}
        assert refused == {2, 4}
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            (stats,) = await client.admin("subscriptions.list", topic="twice/a/t")
            assert stats["consumers"] == []


async def test_sequence_beyond_the_maximum_is_refused(broker: BrokerProcess) -> None:
    async with undisturbed(broker), peer_of(broker) as peer:
        await peer.say(wire.OpenProducer(1, 1, "numbers", "p", -1))
        assert isinstance(await peer.hear(), wire.ProducerReady)
        await peer.say(wire.Publish(1, MAX_INT64, -1, None, None, TWO))
        reply = await peer.hear()
        assert isinstance(reply, wire.Refused), reply
        assert not reply.retryable


async def publish_with(peer: Peer, command: wire.Publish) -> Any:
    await peer.say(wire.OpenProducer(1, 1, "times", "p", -1))
    assert isinstance(await peer.hear(), wire.ProducerReady)
    await peer.say(command)
    return await peer.hear()


TIMES: Final = {
    "negative delay": ("delay_ms", -2, "protocol_error"),
    "very negative delay": ("delay_ms", -MAX_INT64, "protocol_error"),
    "negative time": ("at_ms", -2, "protocol_error"),
    "delay past the maximum": ("delay_ms", 86_400_001, "delay_too_long"),
    "time past the maximum": ("at_ms", 1 << 62, "delay_too_long"),
    "largest delay there is": ("delay_ms", MAX_INT64, "delay_too_long"),
    "largest time there is": ("at_ms", MAX_INT64, "delay_too_long"),
}


@pytest.mark.parametrize("what", TIMES)
async def test_invalid_due_times_are_refused_with_their_error_code(
    broker: BrokerProcess, what: str
) -> None:
    """P1: negative due times, and due times beyond the maximum delay."""
    name, value, code = TIMES[what]
    publish = replace(
        wire.Publish(1, 0, -1, None, None, ONE), **{name: np.array([value], np.int64)}
    )
    async with undisturbed(broker), peer_of(broker) as peer:
        reply = await publish_with(peer, publish)
        assert isinstance(reply, wire.Refused)
        assert reply.code == code


async def test_batch_with_wrong_column_lengths_is_refused(broker: BrokerProcess) -> None:
    bodies = [
        b"",
        ONE[:-1],
        ONE + b"!",
        b"\x09" + ONE[1:],
        struct.pack("<BBxxI", 1, 0, 0xFFFFFFFF),
        struct.pack("<BBxxI", 1, 0, 0),
        struct.pack("<BBxxII", 1, 0, 1, 0xFFFFFFFF),
    ]
    async with undisturbed(broker):
        for body in bodies:
            async with peer_of(broker) as peer:
                with trio.fail_after(TIMEOUT_S):
                    await peer.say(wire.OpenProducer(1, 1, "lies", "p", -1))
                    assert isinstance(await peer.hear(), wire.ProducerReady)
                    packed = msgpack.packb([12, 1, 0, -1, None, None, body])
                    await peer.stream.send_all(framed(packed))
                    assert isinstance((await peer.last_words())[-1], wire.Refused)


async def test_acks_of_undelivered_messages_have_no_effect(broker: BrokerProcess) -> None:
    """A message that is published later is delivered nevertheless."""
    async with undisturbed(broker), peer_of(broker) as peer:
        everything = np.array([0, 5, MAX_INT64 - 1], np.int64)
        first, last = np.array([0], np.int64), np.array([MAX_INT64], np.int64)
        await peer.say(
            wire.Subscribe(1, 1, "acks/a/t", "s", "shared", "latest", 0, ""),
            wire.OpenProducer(2, 2, "acks/a/t", "p", -1),
        )
        ready = [await peer.hear(), await peer.hear()]
        assert {type(command) for command in ready} == {wire.ConsumerReady, wire.ProducerReady}
        await peer.say(
            wire.Ack(3, 1, everything),
            wire.Ack(4, 1, None, first, last),
            wire.Nack(5, 1, everything, MAX_INT64),
            wire.Ack(6, 99, everything),
            wire.Nack(7, 99, everything, 0),
            wire.Flow(99, 5),
            wire.Flow(1, 5),
            wire.Publish(2, 0, -1, None, None, ONE),
        )
        heard = [await peer.hear() for _ in range(7)]
        by_type = {kind: [c for c in heard if type(c) is kind] for kind in map(type, heard)}
        assert [(c.request_id, c.count) for c in by_type[wire.Acked]] == [(3, 0), (4, 0), (5, 0)]
        assert {c.request_id for c in by_type[wire.Refused]} == {6, 7}
        (delivered,) = by_type[wire.Deliver]
        assert delivered.offsets.tolist() == [0]
        await peer.say(wire.Nack(8, 1, delivered.offsets, MAX_INT64))
        assert (await peer.hear()).count == 1


async def test_invalid_names_and_verbs_are_refused(broker: BrokerProcess) -> None:
    requests = [
        wire.Subscribe(1, 1, "a/b/c/d", "s", "shared", "latest", 0, ""),
        wire.Subscribe(2, 1, "", "s", "shared", "latest", 0, ""),
        wire.Subscribe(3, 1, "bad name", "s", "shared", "latest", 0, ""),
        wire.Subscribe(4, 1, "fine", "../etc", "shared", "latest", 0, ""),
        wire.OpenProducer(5, 1, "fine", "pro ducer", -1),
        wire.Admin(6, "no.such.verb", {}),
        wire.Admin(7, "topics.create", {"topic": 5}),
        wire.Admin(8, "topics.create", {"topic": "fine", "extra": 1}),
        wire.Admin(9, "namespaces.enable_delayed_message", {"namespace": "a/b", "tick_ms": -1}),
        wire.Admin(
            10,
            "namespaces.enable_delayed_message",
            {"namespace": "public/default", "tick_ms": 1 << 60},
        ),
    ]
    async with undisturbed(broker), peer_of(broker) as peer:
        for request in requests:
            try:
                await peer.say(request)
            except escapement.ProtocolError:
                continue  # the client's protocol object refuses it
            reply = await peer.hear()
            assert isinstance(reply, wire.Refused), (request, reply)
            assert not reply.retryable


async def test_random_bytes_and_mangled_frames_disturb_no_other_client(
    broker: BrokerProcess,
) -> None:
    chance = np.random.default_rng(20_26)
    frames = [
        framed(msgpack.packb([12, 1, 0, -1, None, None, ONE])),
        framed(msgpack.packb([20, 1, 1, "fuzz/a/t", "s", "shared", "latest", 0, ""])),
        framed(msgpack.packb([24, 1, 1, b"\0" * 16, None, None])),
        framed(msgpack.packb([40, 1, "topics.list", {"namespace": "public/default"}])),
    ]
    async with undisturbed(broker):
        for number in range(150):
            mangled = bytearray(frames[number % len(frames)] * 2)
            for at in chance.integers(0, len(mangled), 1 + number % 4).tolist():
                mangled[at] = int(chance.integers(256))
            async with peer_of(broker) as peer:
                await peer.stream.send_all(bytes(mangled))
                await peer.stream.send_eof()
                with trio.fail_after(TIMEOUT_S):
                    while await peer.stream.receive_some(65536):
                        pass


async def test_unknown_topics_are_refused_where_creation_is_off(tmp_path: Path) -> None:
    with broker_process(tmp_path / "strict", None, "--no-create-topics") as strict:
        async with escapement.connect(strict.url, settings=PATIENT) as client:
            await client.admin("topics.create", topic="known")
            async with client.consumer("known", "s") as inbox:
                with pytest.raises(escapement.NotFound, match="unknown"):
                    await client.producer("unknown")
                with pytest.raises(escapement.NotFound, match="unknown"):
                    async with client.consumer("unknown", "s"):
                        pass
                await round_trip(await client.producer("known"), inbox)
