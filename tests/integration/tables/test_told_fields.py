"""Consumers of a message table learn the fields of its rows before the rows."""

from __future__ import annotations

import numpy as np
from trio.testing import MockClock, wait_all_tasks_blocked

from escapement import testing
from escapement.broker.subscription.delivery.ack_waits import AckWaits
from escapement.broker.subscription.priorities.ready import Rows
from escapement.field import Field
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as wire
from escapement.testing import World
from support.wire_peer import WirePeer, wire_peer

FIELDS = (Field("id", "bigint"), Field("message", "json"))
CHANGED = (*FIELDS, Field("tenant_id", "bigint unsigned"))


def rows_with(fields: tuple[Field, ...] | None) -> MessageBatch:
    return MessageBatch(Blobs.of([b"a", b"b"]), fields=fields)


async def deliver(
    world: World, peer: WirePeer, consumer_id: int, *batches: MessageBatch
) -> list[wire.Command]:
    """Deliver batches through the session of a consumer, and return what its peer hears."""
    offsets = np.arange(2)
    (subscription,) = world.server.services.activation.subscriptions.values()
    (consumer,) = [one for one in subscription.consumers if one.wire_id == consumer_id]
    for batch in batches:
        rows = Rows.fresh(offsets, offsets)
        consumer.outlet.deliver(consumer_id, rows, None, batch, AckWaits())
    await wait_all_tasks_blocked()
    heard, peer.heard = peer.heard, []
    return heard


def told(heard: list[wire.Command]) -> list[wire.Command | None]:
    """Return all Fields, and None for each Deliver."""
    return [None if isinstance(one, wire.Deliver) else one for one in heard]


def subscribe(request_id: int, consumer_id: int) -> wire.Subscribe:
    return wire.Subscribe(request_id, consumer_id, "t", "s", "shared", "earliest", 0, "")


async def test_fields_come_before_the_first_rows_and_when_they_change(
    mock_clock: MockClock,
) -> None:
    """V11: a consumer knows the names and types of the columns before it gets rows."""
    batch, changed = rows_with(FIELDS), rows_with(CHANGED)
    # As after a look at the table that found the same columns.
    same = rows_with(tuple(Field(*field) for field in FIELDS))
    async with testing.start() as world, wire_peer(world) as peer:
        await peer.say(subscribe(1, 7))
        heard = await deliver(world, peer, 7, batch, batch.part(0, 2), same, same)
        assert told(heard) == [wire.Fields.of(7, FIELDS), None, None, None, None]
        heard = await deliver(world, peer, 7, changed, changed, batch)
        fields = wire.Fields.of(7, CHANGED), wire.Fields.of(7, FIELDS)
        assert told(heard) == [fields[0], None, None, fields[1], None]


async def test_each_consumer_of_a_connection_learns_the_fields(mock_clock: MockClock) -> None:
    """V11: also a consumer that takes over the id of a closed one."""
    batch = rows_with(FIELDS)
    async with testing.start() as world, wire_peer(world) as peer:
        for request_id, consumer_id in ((1, 1), (2, 2)):
            await peer.say(subscribe(request_id, consumer_id))
            heard = await deliver(world, peer, consumer_id, batch, batch)
            assert told(heard) == [wire.Fields.of(consumer_id, FIELDS), None, None]
        await peer.say(wire.CloseConsumer(3, 1))
        await peer.say(subscribe(4, 1))
        assert told(await deliver(world, peer, 1, batch)) == [wire.Fields.of(1, FIELDS), None]


async def test_consumer_that_the_broker_closed_learns_the_fields_again(
    mock_clock: MockClock,
) -> None:
    batch = rows_with(FIELDS)
    async with testing.start() as world, wire_peer(world) as peer:
        await peer.say(subscribe(1, 1))
        assert len(await deliver(world, peer, 1, batch)) == 2
        arguments = {"topic": "t", "subscription": "s", "force": True}
        heard = await peer.say(wire.Admin(2, "subscriptions.delete", arguments))
        assert wire.ConsumerClosed in map(type, heard)
        await peer.say(subscribe(3, 1))
        assert told(await deliver(world, peer, 1, batch)) == [wire.Fields.of(1, FIELDS), None]


async def test_consumer_of_an_ordinary_topic_is_told_no_fields(mock_clock: MockClock) -> None:
    async with testing.start() as world, wire_peer(world) as peer:
        await peer.say(subscribe(1, 1))
        assert told(await deliver(world, peer, 1, rows_with(None))) == [None]
