"""The turns of a session among others."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from escapement import testing
from escapement.broker.front.front import Front
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION


async def connected(front: Front, nursery: trio.Nursery) -> tuple[trio.StapledStream, Connection]:
    """Connect to a front over memory, and shake hands."""
    ours, theirs = memory_stream_pair()
    nursery.start_soon(front.serve_stream, theirs)
    peer = Connection("client")
    await ours.send_all(b"".join(peer.send(wire.Hello(PROTOCOL_VERSION, "test", {}))))
    await wait_all_tasks_blocked()
    peer.receive_data(await ours.receive_some())
    assert [type(command) for command in peer.events()] == [wire.Welcome]
    return ours, peer


@pytest.mark.parametrize(("size", "reserves"), [(50_000, False), (200_000, True)])
async def test_memory_of_a_small_request_is_reserved_when_all_of_it_has_come(
    size: int, reserves: bool, mock_clock: MockClock
) -> None:
    """Invariant 9: many peers that send small requests slowly hold up nobody."""
    async with testing.start() as world, trio.open_nursery() as nursery:
        front = Front.of_broker(world.server)
        ours, peer = await connected(front, nursery)
        request = b"".join(peer.send(wire.Admin(1, "topics.list", {"text": "x" * size})))
        await ours.send_all(request[:100])
        await wait_all_tasks_blocked()
        assert (front._request_memory.reserved_bytes > 0) == reserves
        await ours.send_all(request[100:])
        await wait_all_tasks_blocked()
        peer.receive_data(await ours.receive_some())
        assert [type(command) for command in peer.events()] == [wire.Refused]
        assert front._request_memory.reserved_bytes == 0
        nursery.cancel_scope.cancel()


class Turns:
    """Counts the turns of a task."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1


async def test_connection_with_many_small_commands_gives_others_their_turn(
    mock_clock: MockClock,
) -> None:
    """Invariant 9: it has its turn again after other tasks."""
    turns = Turns()
    async with testing.start() as world, trio.open_nursery() as nursery:
        ours, peer = await connected(Front.of_broker(world.server), nursery)
        pings = [b"".join(peer.send(wire.Ping(number))) for number in range(2_000)]
        await ours.send_all(b"".join(pings))
        nursery.start_soon(turns.take)
        pongs = 0
        while pongs < len(pings):
            peer.receive_data(await ours.receive_some())
            pongs += len(list(peer.events()))
        assert turns.count >= 20
        nursery.cancel_scope.cancel()


async def test_connection_with_acks_of_many_messages_gives_others_their_turn(
    mock_clock: MockClock,
) -> None:
    """Invariant 9: each of its small requests names all messages of a topic."""
    turns, topic, messages = Turns(), "public/default/x", 200_000
    async with testing.start() as world, trio.open_nursery() as nursery:
        async with world.connect() as broker:
            producer = await broker.producer(topic)
            for _ in range(0, messages, 10_000):
                await producer.send_many([b""] * 10_000)
        ours, peer = await connected(Front.of_broker(world.server), nursery)
        subscribe = wire.Subscribe(1, 7, topic, "s", "shared", "earliest", 1000, "")
        await ours.send_all(b"".join(peer.send(subscribe)))
        await wait_all_tasks_blocked()
        nursery.start_soon(turns.take)
        first, last = np.array([0]), np.array([messages])
        for number in range(20):
            await ours.send_all(b"".join(peer.send(wire.Ack(100 + number, 7, None, first, last))))
        counts: list[int] = []
        while len(counts) < 20:
            peer.receive_data(await ours.receive_some())
            counts += [one.count for one in peer.events() if isinstance(one, wire.Acked)]
        assert counts == [messages] + [0] * 19
        assert turns.count >= 100
        nursery.cancel_scope.cancel()
