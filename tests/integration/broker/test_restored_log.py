"""A broker on a database that was restored to an earlier state, while its index is newer."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.database.contents import put_back, save

TOPIC = "t/n/x"
NAMES = {"topic": TOPIC, "subscription": "s"}
PATIENT = BrokerConfig(ack_wait_ms=10**10, seed=0)


async def merge_all(world: World) -> None:
    """Merge the segments into one, without messages that are finished."""
    manifest = world.server.index.manifest
    assert manifest is not None
    await world.server.services.compactor.merge(list(manifest.segments))


async def test_messages_finished_after_the_backup_are_delivered_although_the_index_lost_them(
    mock_clock: trio.testing.MockClock, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """O9, invariant 7: a merge leaves them out, and no checkpoint follows it."""
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES)
            producer = await broker.producer(TOPIC)
            receipts = [await producer.send(b"acknowledged"), await producer.send(b"left")]
            for payload in (b"moved", b"cancelled"):
                receipts.append(await producer.send(payload, delay=timedelta(hours=1)))
            await world.checkpoint()
            backup = save(engine)
            async with broker.consumer(TOPIC, "s") as inbox:
                await inbox.ack([(await arrived(inbox))[0].id], durable=True)
            await broker.reschedule(receipts[2], delay=timedelta(hours=9))
            await broker.cancel(receipts[3])
            await merge_all(world)
        await world.crash()
        put_back(engine, backup)
        await world.restart()
        async with world.connect() as broker, broker.consumer(TOPIC, "s") as inbox:
            messages = await arrived(inbox)
            assert [message.value for message in messages] == [b"acknowledged", b"left"]
            await world.clock.advance(hours=1)
            messages = await arrived(inbox)
            assert [message.value for message in messages] == [b"moved", b"cancelled"]
    assert "rebuilding it" in caplog.text


async def test_clients_that_stay_open_work_on_with_the_restored_log(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """O9: their producer has sequences that the log lost, and their consumer has its messages."""
    async with testing.start(config=PATIENT, engine=engine) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        producer = await broker.producer(TOPIC)
        await producer.send(b"kept")
        backup = save(engine)
        await producer.send_many([b"lost", b"lost too"])
        async with broker.consumer(TOPIC, "s") as inbox:
            messages = await arrived(inbox)
            assert [message.value for message in messages] == [b"kept", b"lost", b"lost too"]
            await inbox.ack([messages[0].id], durable=True)
            await world.crash()
            put_back(engine, backup)
            await world.restart()
            await world.clock.advance(seconds=30)  # until the client has reconnected
            assert (await producer.send(b"next")).id.offset == 1
            again = await arrived(inbox)
            assert [message.value for message in again] == [b"kept", b"next"]
            assert [message.redelivered for message in again] == [True, False]
