"""Messages for a slow peer are not sent once the lease has ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

import trio
from trio.testing import MemorySendStream, MockClock, memory_stream_pair, wait_all_tasks_blocked

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.front.front import Front
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from escapement.testing import World, arrived
from support.database.outages import Outage

LEASE_S: Final = 10
DELAYS: Final = [timedelta(seconds=1), timedelta(seconds=2)]


class SlowPeer:
    """A client whose socket is full on demand, and which records the commands it receives."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self._protocol = Connection("client")
        self._stream, theirs = memory_stream_pair()
        assert isinstance(theirs.send_stream, MemorySendStream)
        theirs.send_stream.wait_send_all_might_not_block_hook = self._until_writable
        self._writable = trio.Event()
        self._writable.set()
        self._heard: list[wire.Command] = []
        nursery.start_soon(Front.of_broker(world.server).serve_stream, theirs)
        nursery.start_soon(self._listen)

    async def _until_writable(self) -> None:
        await self._writable.wait()

    def full(self) -> None:
        self._writable = trio.Event()

    def empty(self) -> None:
        self._writable.set()

    async def say(self, *commands: wire.Command) -> None:
        for command in commands:
            await self._stream.send_all(b"".join(self._protocol.send(command)))
        await wait_all_tasks_blocked()

    async def heard(self) -> list[wire.Command]:
        """Return the commands received since the last call."""
        await wait_all_tasks_blocked()
        heard, self._heard = self._heard, []
        return heard

    async def _listen(self) -> None:
        while not self.closed:
            self._protocol.receive_data(await self._stream.receive_some())
            self._heard += self._protocol.events()

    @property
    def closed(self) -> bool:
        """Whether the broker has ended the connection."""
        return self._protocol.closed


async def test_messages_buffered_in_a_connection_past_the_lease_are_not_delivered(
    mock_clock: MockClock,
) -> None:
    """B8, invariant 8: as after a SIGSTOP, when a successor may already deliver the same messages.

    They were in flight, so they are redelivered once the broker has the lease again.
    """
    outage = Outage()
    config = BrokerConfig(ack_wait_ms=86_400_000, seed=0)
    async with testing.start(config=config, engine=outage.engine) as world:
        limits = replace(world.config.limits, lease_ms=1000 * LEASE_S)
        world.config = replace(world.config, limits=limits)
        await world.stop()
        await world.restart()
        async with world.connect() as broker, trio.open_nursery() as nursery:
            await broker.admin("subscriptions.create", topic="t", subscription="s")
            producer = await broker.producer("t")
            await producer.send_many([b"in time", b"too late"], delay=DELAYS)
            peer = SlowPeer(world, nursery)
            await peer.say(wire.Hello(PROTOCOL_VERSION, "test", {}))
            await peer.heard()
            await peer.say(wire.Subscribe(1, 1, "t", "s", "shared", "latest", 0, ""))
            await peer.heard()
            await peer.say(wire.Flow(1, 100))
            peer.full()
            await world.clock.advance(seconds=1)
            assert await peer.heard() == []
            peer.empty()
            (deliver,) = await peer.heard()
            assert isinstance(deliver, wire.Deliver)
            assert deliver.decode().payloads.to_list() == [b"in time"]
            peer.full()
            await world.clock.advance(seconds=1)
            outage.unreachable()
            await world.clock.advance(seconds=LEASE_S + 1)
            peer.empty()
            assert await peer.heard() == []
            assert peer.closed
            outage.over()
            await world.clock.advance(seconds=LEASE_S)
            async with broker.consumer("t", "s") as inbox:
                again = await arrived(inbox)
            assert sorted(message.payload for message in again) == [b"in time", b"too late"]
            assert all(message.attempt == 2 for message in again)
