"""The connection to a test peer: handshake, heartbeat, reconnection, requests."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import escapement
import escapement.sync
from escapement.client.connection import link as links
from escapement.client.connection.link import Link, Stream
from escapement.errors import Busy, Disconnected, EscapementError, ProtocolError
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from support.client_peer import Peer, connect, on_both, pipes
from support.storage.commit_pipelines import HandClock


@on_both
async def test_error_says_that_the_broker_closed_the_connection() -> None:
    async def closed() -> Stream:
        ours, theirs = pipes()
        await theirs.aclose()
        return ours

    with pytest.raises(Disconnected, match="connect to the broker: it closed the connection; "):
        await Link.open(closed, "the broker", "test", 5.0)


@on_both
async def test_unreachable_broker_is_reported_at_once() -> None:
    async with Peer.running() as peer:
        peer.refuses_connections = True
        with pytest.raises(Disconnected, match="the peer refuses connections; start a broker"):
            async with connect(peer):
                pass
        peer.refuses_connections = False
        peer.silent = True
        with pytest.raises(Disconnected, match="no answer within 3 s; start a broker"):
            async with connect(peer, connect_timeout_s=3):
                pass


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
def test_error_names_the_address_the_reason_and_a_hint(
    hosts: list[str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may have several IP addresses; they usually share one reason."""

    def found(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 1)) for host in hosts]

    async def fail() -> None:
        async with escapement.connect("escapement://broker.example:1"):
            pass

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(Disconnected) as error:
        anyio.run(fail, backend=backend)
    assert str(error.value) == (
        "cannot connect to escapement://broker.example:1: Connection refused; "
        "start a broker with `escapement serve`, or check the address"
    )


@on_both
async def test_refusal_of_a_connection_is_raised_as_its_own_error() -> None:
    async with Peer.running() as peer:
        peer.greetings.extend([Busy("too many"), ProtocolError("version 9 is spoken here")])
        with pytest.raises(Busy, match="too many"):
            async with connect(peer):
                pass
        with pytest.raises(ProtocolError, match="version 9"):
            async with connect(peer):
                pass


@on_both
async def test_exception_in_the_block_is_raised_unchanged() -> None:
    async def fail(peer: Peer) -> None:
        async with connect(peer) as broker:
            await broker.producer("t")
            raise KeyError("mine")

    async with Peer.running() as peer:
        with pytest.raises(KeyError, match="mine"):
            await fail(peer)
        with anyio.CancelScope() as scope:
            async with connect(peer):
                scope.cancel()
                await anyio.sleep(1)
        assert scope.cancelled_caught


@on_both
async def test_exception_in_the_block_is_raised_with_errors_of_other_tasks() -> None:
    async def consume(broker: escapement.Broker) -> None:
        async with broker.consumer("t", "s") as inbox:
            await anext(inbox)

    async def fail(peer: Peer) -> None:
        async with anyio.create_task_group() as tasks, connect(peer) as broker:
            tasks.start_soon(consume, broker)
            await anyio.sleep(1)
            raise KeyError("mine")

    async with Peer.running() as peer:
        with pytest.raises(BaseExceptionGroup) as caught:
            await fail(peer)
        assert caught.group_contains(KeyError, match="mine")
        assert caught.group_contains(Disconnected, match="closed by this side")


@on_both
async def test_closing_does_not_wait_for_a_lost_connection() -> None:
    async def never(item: bytes) -> None:
        await anyio.sleep_forever()

    async def cut(peer: Peer) -> None:
        await anyio.sleep(1)
        await peer.cut()

    async with Peer.running() as peer, anyio.create_task_group() as tasks:
        async with connect(peer, close_timeout_s=60) as broker:
            broker._lines.first.link._stream.send = never
            tasks.start_soon(cut, peer)
        assert anyio.current_time() < 2


@on_both
async def test_requests_are_answered_and_wait_for_a_connection() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        assert broker.name == "peer"
        assert await broker.admin("echo", a=[1, {"b": None}]) == {"a": [1, {"b": None}]}
        peer.refuses_connections = True
        await peer.cut()
        await anyio.sleep(1)
        assert not broker.connected
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                assert await broker.admin("echo", b=2) == {"b": 2}

            tasks.start_soon(ask)
            await anyio.sleep(8)
            peer.refuses_connections = False
        assert broker.connected


@on_both
async def test_request_without_an_answer_raises_disconnected() -> None:
    async with Peer.running() as peer, connect(peer, request_timeout_s=7) as broker:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(Disconnected, match="not known"):
                    await broker.admin("unheard")

            tasks.start_soon(ask)
            await anyio.sleep(1)
            await peer.cut()
        with pytest.raises(Disconnected, match="within 7 s"):
            await broker.admin("unheard")


@on_both
async def test_unanswered_request_that_timed_out_or_was_cancelled_leaves_nothing_behind() -> None:
    async with Peer.running() as peer, connect(peer, request_timeout_s=7) as broker:
        with pytest.raises(Disconnected, match="did not answer within 7 s"):
            await broker.admin("unheard")
        with anyio.move_on_after(1):
            await broker.admin("unheard")
        assert len(peer.heard_of(wire.Admin)) == 2
        assert not broker._lines.first._answers


@on_both
async def test_request_that_found_no_connection_says_so() -> None:
    async with Peer.running() as peer, connect(peer, request_timeout_s=7) as broker:
        peer.refuses_connections = True
        await peer.cut()
        await anyio.sleep(1)
        with pytest.raises(Disconnected, match="after 7 s: cannot connect to the broker: the peer"):
            await broker.admin("echo")


@on_both
async def test_repeatable_requests_are_sent_again_after_a_lost_connection() -> None:
    async with Peer.running() as peer, connect(peer, request_timeout_s=7) as broker:
        began_s = anyio.current_time()
        unheard: list[str] = []

        async def ask(verb: str) -> None:
            with pytest.raises(Disconnected) as said:
                await broker.admin(verb)
            unheard.append(f"{verb}: {said.value}")

        async with anyio.create_task_group() as tasks:
            for verb in ("things.get", "things.pause", "things.delete", "things.create"):
                tasks.start_soon(ask, verb)
            for _ in range(3):
                await anyio.sleep(1)
                await peer.cut()
        asked = Counter(command.verb for command in peer.heard_of(wire.Admin))
        assert asked == {
            "things.get": 4,
            "things.pause": 4,
            "things.delete": 1,
            "things.create": 1,
        }
        assert len(unheard) == 4
        assert anyio.current_time() - began_s == pytest.approx(7)


@on_both
async def test_silent_broker_is_pinged_and_then_reconnected() -> None:
    settings = {"heartbeat_s": 15, "heartbeat_timeout_s": 10}
    async with Peer.running() as peer, connect(peer, **settings) as broker:
        await anyio.sleep(100)
        assert len(peer.heard_of(wire.Ping)) == 6
        assert broker.connected
        assert len(peer.sessions) == 1
        peer.silent = True
        await anyio.sleep(14)  # the client pings meanwhile, and the peer does not answer
        peer.silent = False
        await anyio.sleep(3)
        assert len(peer.heard_of(wire.Hello)) == 2
        assert broker.connected


@on_both
async def test_messages_were_sent_after_the_last_ping_that_has_its_answer() -> None:
    """A suspended process reads messages that the broker sent days before."""
    clock = HandClock(1_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "_CLOCK", clock)
        for heartbeat_s, sent_ms in ((15, [1_000, 5_000]), (None, [5_000, 9_000])):
            clock.now = 1_000
            async with Peer.running() as peer, connect(peer, heartbeat_s=heartbeat_s) as broker:
                async with broker.consumer("t", "s") as consumer:
                    for offset, now_ms in enumerate((5_000, 9_000)):
                        clock.now = now_ms
                        await peer.deliver([b"x"], [offset])
                        message = await consumer.receive()
                        assert message is not None
                        assert message._columns._source.sent_after_ms == sent_ms[offset]
                        await anyio.sleep(20)


class StuckStream:
    """A stream that a broker has sent a ping to, and that accepts nothing."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    async def receive(self, max_bytes: int) -> bytes:
        await anyio.sleep(5)
        received, self._received = self._received, b""
        if not received:
            await anyio.sleep_forever()
        return received

    async def send(self, item: bytes) -> None:
        await anyio.sleep_forever()

    async def aclose(self) -> None: ...


def greeted() -> tuple[Connection, Connection, wire.Welcome]:
    """Return both ends of a connection after the handshake, the client's first."""
    ours, broker = Connection("client"), Connection("broker")
    broker.receive_data(b"".join(ours.send(wire.Hello(PROTOCOL_VERSION, "test", {}))))
    assert len(list(broker.events())) == 1
    welcome = wire.Welcome(PROTOCOL_VERSION, "broker", "1", {})
    ours.receive_data(b"".join(broker.send(welcome)))
    assert len(list(ours.events())) == 1
    return ours, broker, welcome


async def wait_at_most(turns: int, act: Callable[[], Awaitable[None]]) -> None:
    """Call ``act``; fail if it takes more turns of the event loop."""
    ended = False

    async def watch() -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        assert ended

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await act()
        ended = True


class SlowlyClosing:
    """A stream that a broker has sent ``received`` to and then ended, and that closes slowly."""

    def __init__(self, received: bytes) -> None:
        self._received = received
        self.closing = anyio.Event()

    async def receive(self, max_bytes: int) -> bytes:
        await anyio.sleep(1)
        received, self._received = self._received, b""
        if not received:
            raise anyio.EndOfStream
        return received

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.closing.set()
        await anyio.sleep(100)


@on_both
async def test_lost_link_that_closes_slowly_accepts_commands_and_writes_none() -> None:
    """It keeps no memory for them, and waiting until they are written takes no time.

    The second link has met a violation of the protocol, so that nothing may be sent on it.
    """
    for received in (b"", b"\0\0\0\x02\x91\x7f"):
        ours, _, welcome = greeted()
        stream = SlowlyClosing(received)
        link = Link(stream, ours, welcome)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run, lambda command: None, None, 60)
            await stream.closing.wait()
            link.send(wire.Admin(1, "echo", {}))
            link.send(wire.Goodbye("done"))
            await wait_at_most(100, link.written)
            assert not link._outgoing


@on_both
async def test_heartbeat_ends_when_goodbye_is_queued() -> None:
    """The stream accepts nothing, so the goodbye waits while pings are due and asked for."""
    ours, broker, welcome = greeted()
    link = Link(StuckStream(b"".join(broker.send(wire.Ping(1)))), ours, welcome)
    link.send(wire.Goodbye("done"))
    with anyio.move_on_after(30):
        await link.run(lambda command: None, 10, 60)
    assert str(link.error) == "the connection was closed"


@on_both
async def test_client_reconnects_after_goodbye_or_a_protocol_error() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        await peer.sessions[-1].pipe.send(b"\0\0\0\x02\x91\x7f")
        await anyio.sleep(1)
        await producer.send(b"a")
        await peer.sessions[-1].say(wire.Goodbye("restarting"))
        await anyio.sleep(1)
        await producer.send(b"b")
        await peer.sessions[-1].say(wire.Refused.because(EscapementError("of the connection")))
        await anyio.sleep(1)
        await producer.send(b"c")
        assert len(peer.heard_of(wire.Hello)) == 4
        assert [row[0] for row in peer.log] == [b"a", b"b", b"c"]
