"""A broker that hangs, or whose machine is lost: connections stay open, and nothing answers."""

from __future__ import annotations

import inspect
import socket
import threading
import time
from time import monotonic
from typing import Final

import anyio
import pytest

import escapement
from escapement.broker.limits import BrokerLimits
from escapement.client.connect import Connecting
from escapement.client.connection.address import Address, Addresses
from escapement.client.connection.lines import Lines
from escapement.client.connection.link import Stream
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from support.client_peer import Peer, on_both

LEASE_S: Final = BrokerLimits().lease_ms / 1000
# The promise about the topics of a dead node.
FAILOVER_S: Final = 1.5 * LEASE_S + 2
# The most that reconnecting adds to the heartbeat: an attempt at the silent broker, a back-off, and
# the start of producers.
RECONNECT_S: Final = 3.0


def test_defaults_notice_a_silent_broker_in_the_time_of_a_failover() -> None:
    """B8: the application sees a pause and nothing else."""
    settings = Settings()
    assert settings.heartbeat_s is not None
    noticed_s = settings.heartbeat_s + settings.heartbeat_timeout_s
    assert noticed_s + RECONNECT_S <= FAILOVER_S
    longest, unit = inspect.signature(escapement.Broker.producer).parameters["send_timeout"].default
    assert unit == "s"
    assert longest > FAILOVER_S
    assert settings.request_timeout_s > FAILOVER_S


@on_both
async def test_owner_that_hangs_delays_a_send_no_longer_than_a_failover() -> None:
    """B8: another broker names it as the owner until that has the bundle, and then serves."""
    for before_s in (0.5, 2, 3.5, 4.99, 6):
        for taken_over_s in (8, 10.7, 12, 13.5):
            async with Peer.running() as frozen, Peer.running() as heir:
                heir.elsewhere = wire.Moved(0, 0, "a", 1)
                heir.producers = frozen.producers  # in the database
                peers = {"a": frozen, "b": heir}

                async def dial(address: Address, peers: dict[str, Peer] = peers) -> Stream:
                    return await peers[address.host].factory()

                addresses, source = Addresses.parse("escapement://a,b"), TokenSource(None, None)
                frozen.limits = {"epoch": 1}
                lines = Lines(dial, addresses, "", Settings(), source, clock_s=monotonic)
                async with Connecting(lines) as broker, anyio.create_task_group() as tasks:
                    producer = await broker.producer("t")
                    await anyio.sleep(before_s)
                    frozen.silent = True
                    frozen_s = anyio.current_time()
                    tasks.start_soon(producer.send, b"m")
                    await anyio.sleep(taken_over_s)
                    assert not heir.log
                    heir.elsewhere = None
                    await until_stored(heir)
                    assert anyio.current_time() - frozen_s < FAILOVER_S


async def until_stored(peer: Peer) -> None:
    while not peer.log:  # noqa: ASYNC110
        await anyio.sleep(0.01)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_broker_is_not_silent_while_the_application_blocks_the_event_loop(backend: str) -> None:
    """Its answer to the ping waits in the socket, and counts although it is read late."""
    settings = Settings(heartbeat_s=0.05, heartbeat_timeout_s=0.2)
    blocks, answered = threading.Event(), threading.Event()

    async def block(url: str) -> None:
        async with escapement.connect(url, settings=settings) as broker:
            link = broker._lines.first.link
            assert link is not None
            for _ in range(8):
                ping = link._ping
                while link._ping == ping and link.error is None:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                await link.written()
                assert link.error is None
                blocks.set()
                time.sleep(0.3)  # noqa: ASYNC251
                assert answered.wait(60)
                answered.clear()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        thread = threading.Thread(target=answer_pings, args=[listener, blocks, answered])
        thread.start()
        try:
            anyio.run(block, f"escapement://127.0.0.1:{listener.getsockname()[1]}", backend=backend)
        finally:
            blocks.set()
            thread.join()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_broker_that_receives_much_over_a_slow_network_is_not_silent(backend: str) -> None:
    """It cannot answer a ping before it has read the earlier frames."""
    settings = Settings(heartbeat_s=0.1, heartbeat_timeout_s=1.0)

    async def send(url: str) -> None:
        async with escapement.connect(url, settings=settings) as broker:
            link = broker._lines.first.link
            assert link is not None
            for number in range(1, 17):
                link.send(wire.Admin(number, "topics.create", {"topic": b"x" * 500_000}))
            await link.written()
            assert link.error is None

    received = 0

    def read_slowly(listener: socket.socket) -> None:
        nonlocal received
        stream, _ = listener.accept()
        broker = Connection("broker")
        with stream:
            broker.receive_data(stream.recv(65_536))
            assert isinstance(next(iter(broker.events())), wire.Hello)
            welcome = wire.Welcome(PROTOCOL_VERSION, "b", "0", {})
            stream.sendall(b"".join(broker.send(welcome)))
            while data := stream.recv(256 * 1024):
                received += len(data)
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
        thread = threading.Thread(target=read_slowly, args=[listener])
        thread.start()
        began_s = monotonic()
        try:
            anyio.run(send, f"escapement://127.0.0.1:{listener.getsockname()[1]}", backend=backend)
        finally:
            thread.join()
        assert monotonic() - began_s > 2 * settings.heartbeat_timeout_s
        assert received > 16 * 500_000


def answer_pings(
    listener: socket.socket, blocks: threading.Event, answered: threading.Event
) -> None:
    """Accept one client, and answer each ping while its event loop is blocked, until it leaves."""
    stream, _ = listener.accept()
    broker = Connection("broker")
    with stream:
        while data := stream.recv(65_536):
            broker.receive_data(data)
            for command in broker.events():
                answer: wire.Command
                match command:
                    case wire.Hello():
                        answer = wire.Welcome(PROTOCOL_VERSION, "b", "0", {})
                    case wire.Ping():
                        assert blocks.wait(60)
                        blocks.clear()
                        answer = wire.Pong(command.token)
                    case _:
                        return
                stream.sendall(b"".join(broker.send(answer)))
                if isinstance(command, wire.Ping):
                    answered.set()
