"""Peers that ask for data and do not read it use only bounded memory, all together."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
import trio

import escapement
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from support.processes.broker import PATIENT, BrokerProcess, broker_process

MIB: Final = 1 << 20
TOPIC: Final = "public/default/large"


def ask(broker: BrokerProcess, commands: list[wire.Command]) -> socket.socket:
    """Connect, send a hello and the commands, and read only what must come before the next."""
    peer = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
    protocol = Connection("client")
    for command in [wire.Hello(PROTOCOL_VERSION, "deaf", {}), *commands]:
        peer.sendall(b"".join(protocol.send(command)))
        if isinstance(command, wire.Hello | wire.Subscribe):
            answers: list[wire.Command] = []
            while not answers:
                data = peer.recv(65_536)
                assert data, "the broker closed the connection"
                protocol.receive_data(data)
                answers += protocol.events()
            assert isinstance(answers[0], wire.Welcome | wire.ConsumerReady)
    return peer


def reads(number: int) -> list[wire.Command]:
    """Return sixty requests for the first page."""
    return [wire.Read(request_id, TOPIC, 0, -1, 1_000) for request_id in range(1, 61)]


def consumes(number: int) -> list[wire.Command]:
    """Return the requests of one consumer that reads the topic from its beginning."""
    name = f"deaf-{number}"
    return [
        wire.Subscribe(1, 1, TOPIC, name, "exclusive", "earliest", 0, ""),
        wire.Flow(1, 1_000),
    ]


@pytest.mark.parametrize(("peers", "commands"), [(60, reads), (100, consumes)])
async def test_output_of_peers_that_do_not_read_is_bounded(
    tmp_path: Path, peers: int, commands: Callable[[int], list[wire.Command]]
) -> None:
    """Invariant 9: a good client goes on meanwhile."""
    with broker_process(tmp_path / "broker") as broker, ExitStack() as deaf:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            large = await client.producer(TOPIC)
            for _ in range(40):
                await large.send_many([bytes(MIB // 16)] * 16)
            producer = await client.producer("t")
            async with client.consumer("t", "s") as inbox:
                before = most = broker.rss_bytes()
                for number in range(peers):
                    deaf.enter_context(ask(broker, commands(number)))
                for number in range(150):
                    await producer.send(b"%d" % number)
                    message = await inbox.receive(timeout_s=30)
                    assert message is not None
                    await message.ack()
                    most = max(most, broker.rss_bytes())
                    await trio.sleep(0.05)
        deaf.close()
        print(f"{(most - before) / MIB:.0f} MiB more")
        assert (most - before) / MIB < 350, f"{(most - before) / MIB:.0f} MiB more"
        assert broker.stop() == 0


async def test_slow_consumers_do_not_starve_a_good_one(tmp_path: Path) -> None:
    """Invariant 9: 100 consumers read 300 KB each 1.5 s, which is not slow enough to be cut off."""
    with broker_process(tmp_path / "broker") as broker, ExitStack() as slow:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            large = await client.producer(TOPIC)
            for _ in range(40):
                await large.send_many([bytes(MIB // 16)] * 16)
            peers = [slow.enter_context(ask(broker, consumes(number))) for number in range(100)]
            for peer in peers:
                peer.setblocking(False)
            producer = await client.producer("t")
            async with client.consumer("t", "s") as inbox, trio.open_nursery() as nursery:
                nursery.start_soon(read_slowly, peers)
                await trio.sleep(3)
                for number in range(40):
                    await producer.send(b"%d" % number)
                    message = await inbox.receive(timeout_s=30)
                    assert message is not None
                    await message.ack()
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        slow.close()
        assert broker.stop() == 0


async def test_slow_readers_of_large_messages_do_not_keep_others_from_pages(
    tmp_path: Path,
) -> None:
    """Invariant 9: the messages of 30 slow consumers fill more than twice the bound."""
    with broker_process(tmp_path / "broker") as broker, ExitStack() as slow:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            large = await client.producer(TOPIC)
            for _ in range(2):
                await large.send(bytes(8 * MIB - 4096))
            small = await client.producer("small")
            await small.send_many([b"x"] * 1_000)
            peers = [slow.enter_context(ask(broker, consumes(number))) for number in range(30)]
            for peer in peers:
                peer.setblocking(False)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_slowly, peers)
                await trio.sleep(6)
                with trio.fail_after(60):
                    for _ in range(20):
                        assert [page async for page in client.read("small")]
                nursery.cancel_scope.cancel()
        slow.close()
        assert broker.stop() == 0


async def read_slowly(peers: list[socket.socket]) -> None:
    """Read 300 KB of each peer every 1.5 s."""
    while True:
        for peer in peers:
            with suppress(BlockingIOError):
                peer.recv(300_000)
            await trio.lowlevel.checkpoint()
        await trio.sleep(1.5)
