"""Connections whose first message has not arrived cost a socket, and no task."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import trio

from escapement.broker.front.admission import Admission
from escapement.broker.front.lobby import First, Guest, Lobby
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import MAX_HANDSHAKE_BYTES

HELLO = b"".join(Connection("client").send(wire.Hello(1, "test", {})))
# Of a test that hangs.
TIMEOUT_S = 60
RECORD = b"\x16\x03\x01\x00\x30" + bytes(0x30)


@dataclass
class Hall:
    """A lobby at a port, and the guests that have left it."""

    lobby: Lobby
    admission: Admission
    port: int
    left: list[tuple[Guest, First]] = field(default_factory=list)

    def call(self) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.port))
        peer.settimeout(TIMEOUT_S)
        return peer

    async def until(self, guests: int, left: int) -> None:
        """Wait until so many guests are in the lobby, and so many have left it."""
        with trio.fail_after(TIMEOUT_S):
            while (len(self.lobby), len(self.left)) != (guests, left):  # noqa: ASYNC110 (sockets)
                await trio.sleep(0.01)


@contextlib.asynccontextmanager
async def hall(
    connections: int = 100, greetings: int = 100, timeout_s: float = 60.0, explains: bool = True
) -> AsyncIterator[Hall]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    left: list[tuple[Guest, First]] = []
    admission = Admission(connections, connections, greetings)
    lobby = Lobby(admission, timeout_s, explains, lambda *one: left.append(one))
    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(lobby.watch)
        nursery.start_soon(lobby.accept, listener)
        yield Hall(lobby, admission, listener.socket.getsockname()[1], left)
        nursery.cancel_scope.cancel()
    for guest, _ in left:
        guest.socket.close()


@pytest.mark.parametrize(
    ("message", "first"), [(HELLO, First.FRAME), (RECORD, First.TLS)], ids=["frame", "tls"]
)
async def test_guest_leaves_with_all_bytes_when_its_first_message_is_whole(
    message: bytes, first: First
) -> None:
    async with hall() as here:
        with here.call() as peer:
            for at in range(len(message) - 1):
                peer.sendall(message[at : at + 1])
            await here.until(1, 0)
            await trio.sleep(0.05)
            assert not here.left
            peer.sendall(message[-1:])
            await here.until(0, 1)
            guest, kind = here.left[0]
            assert kind is first
            assert guest.socket.recv(8192) == message
            guest.seat.leave()
            here.admission._check()


async def test_bytes_that_begin_no_message_leave_at_once() -> None:
    async with hall() as here:
        for first in (
            (MAX_HANDSHAKE_BYTES + 1).to_bytes(4, "big"),
            b"\0\0\0\0",
            b"GET / HTTP/1.1",
            b"\x16\x03\x01\xff\xff",
        ):
            before = len(here.left)
            with here.call() as peer:
                peer.sendall(first)
                await here.until(0, before + 1)


async def test_largest_hello_is_waited_for() -> None:
    async with hall() as here:
        with here.call() as peer:
            peer.sendall(MAX_HANDSHAKE_BYTES.to_bytes(4, "big") + bytes(MAX_HANDSHAKE_BYTES - 1))
            await here.until(1, 0)
            peer.sendall(b"x")
            await here.until(0, 1)


@pytest.mark.parametrize("sent", [b"", b"\0", HELLO[:7], RECORD[:9]])
async def test_peer_that_closes_early_is_forgotten(sent: bytes) -> None:
    async with hall() as here:
        peer = here.call()
        await here.until(1, 0)
        peer.sendall(sent)
        peer.close()
        await here.until(0, 0)
        here.admission._check()


@pytest.mark.parametrize("sent", [b"", HELLO[:7]])
async def test_slow_peer_is_told_why_it_is_closed(sent: bytes) -> None:
    """O3: five seconds for the handshake; here less."""
    async with hall(timeout_s=0.3) as here:
        with here.call() as peer:
            peer.sendall(sent)
            client = Connection("client")
            client.receive_data(await trio.to_thread.run_sync(peer.recv, 4096))
            (refused,) = client.events()
            assert isinstance(refused, wire.Refused)
            assert "silent for too long" in refused.message
            assert peer.recv(1) == b""


async def test_slow_peer_that_expects_tls_gets_no_plain_text() -> None:
    async with hall(timeout_s=0.2, explains=False) as here:
        with here.call() as peer:
            assert await trio.to_thread.run_sync(peer.recv, 4096) == b""


async def test_oldest_guest_makes_room_and_a_full_broker_refuses() -> None:
    """O3: peers without a handshake use a bounded number of sockets."""
    async with hall(connections=4, greetings=3) as here:
        peers = [here.call() for _ in range(3)]
        await here.until(3, 0)
        late = here.call()
        assert await trio.to_thread.run_sync(peers[0].recv, 1) == b""
        await here.until(3, 0)
        late.sendall(HELLO)
        await here.until(2, 1)
        here.left[0][0].seat.greeted()
        peers.append(here.call())
        await here.until(3, 1)
        with here.call() as refused:
            said = await trio.to_thread.run_sync(refused.recv, 4096)
            assert b"all 4 connections are in use" in said
        here.admission._check()
        for peer in [*peers, late]:
            peer.close()
        await here.until(0, 1)
