"""A peer of a broker in memory that sends single commands of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from escapement.broker.front.front import Front
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION
from escapement.testing import World


class WirePeer:
    """The client's end of one connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.heard: list[wire.Command] = []
        self._stream = stream
        self._protocol = Connection("client")

    async def say(self, command: wire.Command) -> list[wire.Command]:
        """Send a command; return the commands that came until all tasks wait."""
        await self._stream.send_all(b"".join(self._protocol.send(command)))
        await wait_all_tasks_blocked()
        heard, self.heard = self.heard, []
        return heard

    async def listen(self) -> None:
        """Collect what the broker sends."""
        while data := await self._stream.receive_some():
            self._protocol.receive_data(data)
            self.heard += self._protocol.events()


@asynccontextmanager
async def wire_peer(world: World) -> AsyncIterator[WirePeer]:
    """Connect a peer that has shaken hands."""
    async with silent_peer(Front.of_broker(world.server)) as peer:
        assert [type(one) for one in await peer.say(hello())] == [wire.Welcome]
        yield peer


@asynccontextmanager
async def silent_peer(front: Front) -> AsyncIterator[WirePeer]:
    """Connect a peer that has not said Hello."""
    async with trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(front.serve_stream, theirs)
        peer = WirePeer(ours)
        nursery.start_soon(peer.listen)
        yield peer
        nursery.cancel_scope.cancel()


def hello(**features: int) -> wire.Hello:
    """Return the Hello of a client with these features."""
    return wire.Hello(PROTOCOL_VERSION, "test", features)
