"""Commands that a peer sends after the broker's goodbye."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from escapement import testing
from escapement.broker.front.front import Front
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION


async def test_requests_that_cross_the_goodbye_are_not_answered(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 1: a publish that crosses the goodbye gets no receipt. No error is logged."""
    caplog.set_level(logging.ERROR)
    async with testing.start() as world, trio.open_nursery() as nursery:
        front = Front.of_broker(world.server)
        ours, theirs = memory_stream_pair()
        nursery.start_soon(front.serve_stream, theirs)
        peer = Connection("client")

        async def say(*commands: wire.Command) -> list[wire.Command]:
            await ours.send_all(b"".join(b"".join(peer.send(command)) for command in commands))
            await wait_all_tasks_blocked()
            peer.receive_data(await ours.receive_some())
            return list(peer.events())

        await say(wire.Hello(PROTOCOL_VERSION, "test", {}))
        (ready,) = await say(wire.OpenProducer(1, 1, "t", "p", -1))
        assert isinstance(ready, wire.ProducerReady)
        front.say_goodbye(world.server)
        await wait_all_tasks_blocked()
        peer.receive_data(await ours.receive_some())
        assert [type(command) for command in peer.events()] == [wire.Goodbye]
        late = MessageBatch(Blobs.of([b"late"])).encode()
        crossed = [
            wire.Publish(7, 0, -1, None, None, late),  # a producer that is not open
            wire.Ping(1),
            wire.CloseProducer(2, 1),
            wire.OpenProducer(3, 2, "t", "q", -1),
        ]
        await ours.send_all(b"".join(b"".join(peer.send(command)) for command in crossed))
        await wait_all_tasks_blocked()
        await ours.send_all(b"".join(peer.send(wire.Goodbye("then I go too"))))
        assert await ours.receive_some() == b""
    assert caplog.records == []
