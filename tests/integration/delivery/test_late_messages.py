"""Messages that wait in a client for longer than the ack wait: the client discards them."""

from __future__ import annotations

from typing import Any

import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.front.front import Front
from escapement.protocol import commands as wire
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.wire_peer import hello, silent_peer

CALM = BrokerConfig(ack_wait_ms=10_000, seed=0)
NAMES = {"topic": "x", "subscription": "s"}


async def test_stuck_consumer_gets_no_message_that_another_one_has(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """V6: the broker has delivered the messages in its buffer to the other one."""
    async with testing.start(config=CALM, engine=engine) as world:
        async with world.connect() as stuck, world.connect() as lively:
            async with stuck.consumer("x", "s", permits=6) as slow:
                producer = await stuck.producer("x")
                await producer.send_many([b"%d" % number for number in range(6)])
                first = await slow.receive()
                assert first is not None
                async with lively.consumer("x", "s") as quick:
                    await world.clock.advance(seconds=10)
                    taken = await arrived(quick)
                    assert [(one.payload, one.attempt) for one in taken] == [
                        (b"%d" % number, 2) for number in range(6)
                    ]
                    await world.clock.advance(ms=1)
                    assert await arrived(slow) == []
                    await quick.ack(taken, durable=True)
                # All its permits have returned.
                await producer.send_many([b"new"] * 5)
                assert [(one.payload, one.attempt) for one in await arrived(slow)] == [
                    (b"new", 1)
                ] * 5


async def test_stuck_consumer_that_is_alone_gets_each_message_once_and_marked(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V6: the broker has delivered the messages to it again, in another frame."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        async with broker.consumer("x", "s") as inbox:
            await (await broker.producer("x")).send_many([b"a", b"b"])
            await world.clock.advance(seconds=11)
            assert [(one.payload, one.attempt) for one in await arrived(inbox)] == [
                (b"a", 2),
                (b"b", 2),
            ]


async def test_messages_stay_as_long_as_the_broker_waits_for_them(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V6, V4: each attempt has its own wait, and a new policy holds from the next delivery on."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        policy = {"ack_wait_ms": "10s", "jitter": 0}
        await broker.admin("subscriptions.create", **NAMES, policy=policy)
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            await producer.send(b"hard")
            await world.clock.advance(seconds=10)
            await producer.send(b"easy")
            # The broker waits for 20 s for the second attempt of the hard one.
            await world.clock.advance(seconds=19)
            assert [(one.payload, one.attempt) for one in await arrived(inbox)] == [
                (b"hard", 2),
                (b"easy", 2),
            ]
            await inbox.ack([0, 1], durable=True)
            await broker.admin("subscriptions.update", **NAMES, policy={"ack_wait_ms": "1m"})
            await producer.send(b"slow")
            await world.clock.advance(seconds=59)
            assert [(one.payload, one.attempt) for one in await arrived(inbox)] == [(b"slow", 1)]


async def test_only_clients_that_understand_it_are_told_how_long_the_broker_waits(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V6: a client of the version before refuses frames with more fields."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        policy = {"jitter": 0}
        await broker.admin("subscriptions.create", **NAMES, policy=policy)
        producer = await broker.producer("x")
        await producer.send(b"a")
        assert await frames(world) == [(0, None)]
        # The consumer left. The broker waits for twice as long after the second delivery.
        await producer.send(b"b")
        assert await frames(world, ack_deadlines=1) == [(10_000, [20_000, 10_000])]
        assert await frames(world, ack_deadlines=1, kind="failover") == [(0, None)] * 2


async def frames(world: World, kind: str = "shared", **features: int) -> list[tuple[int, Any]]:
    """Return the waits of the frames that a new consumer gets."""
    async with silent_peer(Front.of_broker(world.server)) as peer:
        await peer.say(hello(**features))
        subscription = "s" if kind == "shared" else "ordered"
        await peer.say(wire.Subscribe(1, 1, "x", subscription, kind, "earliest", 0, "", None))
        heard = await peer.say(wire.Flow(1, 10))
        return [
            (one.wait_ms, None if one.waits_ms is None else one.waits_ms.tolist())
            for one in heard
            if isinstance(one, wire.Deliver)
        ]
