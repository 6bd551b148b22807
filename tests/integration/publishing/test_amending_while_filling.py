"""Tests of changes to messages that one subscription keeps while its past is filled in (B1, N3).

The subscription ``a`` begins at the earliest message, after the index has forgotten all messages.
So the broker adds them to the index again, and again from the start after each crash. ``a`` was
delivered the messages, or may have been, before one of them is changed for the subscription ``b``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.config import BrokerConfig
from escapement.broker.log.log_reader import LogReader
from escapement.protocol.amend_status import AmendStatus
from escapement.testing import World, arrived
from support.faults.held_calls import FETCH, Held, uncached

TOPIC = "public/default/x"
LATER = timedelta(hours=1)
SOON = timedelta(seconds=2)


async def change(broker: escapement.Broker, how: str, ids: list[Any]) -> Any:
    if how == "cancel":
        return await broker.cancel(ids)
    if how == "reschedule":
        return await broker.reschedule(ids, delay=LATER)
    return await broker.run_now(ids)


async def publish_and_forget(world: World, broker: escapement.Broker) -> list[Any]:
    """Publish three messages, which the index forgets; return their ids. Create ``a``."""
    producer = await broker.producer(TOPIC)
    receipts = await producer.send_many([b"0", b"1", b"2"])
    async with broker.consumer(TOPIC, "first", position="earliest") as inbox:
        await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
    await world.checkpoint()
    assert world.server.index.count(world.server.registry.topics[TOPIC].id) == 0
    await world.clock.advance(seconds=1)
    await broker.admin("subscriptions.create", topic=TOPIC, subscription="a", position="earliest")
    return [receipt.id for receipt in receipts]


async def amend_for_b(broker: escapement.Broker, how: list[str], ids: list[Any]) -> None:
    """Create ``b`` and change the message 1, which ``a`` keeps."""
    await broker.admin("subscriptions.create", topic=TOPIC, subscription="b", position="earliest")
    for one in how:
        outcome = await change(broker, one, ids[1:2])
        assert (outcome.statuses == AmendStatus.DONE).all()
        assert outcome.subscriptions == ("a", "first")


async def offsets(world: World, broker: escapement.Broker, name: str) -> list[int]:
    """Take, acknowledge and return all due messages of a subscription, sorted by offset."""
    async with broker.consumer(TOPIC, name) as inbox:
        found = []
        while messages := await arrived(inbox):
            await inbox.ack([message.id for message in messages], durable=True)
            found += [message.offset for message in messages]
            if name == "a":
                assert all(message.redelivered for message in messages)
    return sorted(found)


CHANGES = [["cancel"], ["reschedule"], ["run_now"], ["reschedule", "reschedule"]]


@pytest.mark.parametrize("how", CHANGES, ids="-".join)
@pytest.mark.parametrize("crashes", [0, 1, 2])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["", "checkpoint"])
async def test_message_that_may_have_been_delivered_stays_with_its_subscription(
    how: list[str], crashes: int, checkpoint: bool, mock_clock: trio.testing.MockClock
) -> None:
    """B1: also if the broker crashes once or twice more before it has delivered the message."""
    async with testing.start() as world:
        async with world.connect() as broker:
            ids = await publish_and_forget(world, broker)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await world.clock.advance(seconds=1)
            await amend_for_b(broker, how, ids)
            if checkpoint:
                await world.checkpoint()
            if crashes:
                await world.crash()
        for _ in range(crashes - 1):
            await world.restart()
            await world.clock.advance(seconds=1)
            await world.crash()
        if crashes:
            await world.restart()
        server = world.server
        async with world.connect() as broker:
            assert await offsets(world, broker, "a") == [0, 1, 2]
            assert await offsets(world, broker, "b") == ([0, 1, 2] if "run_now" in how else [0, 2])
            await world.clock.advance(hours=2)
            assert await offsets(world, broker, "b") == ([1] if "reschedule" in how else [])
            assert await offsets(world, broker, "a") == []
        assert world.server is server


@pytest.mark.parametrize("how", CHANGES, ids="-".join)
@pytest.mark.parametrize("waits", [False, True], ids=["in_flight", "in_retry"])
@pytest.mark.parametrize("crashes", [1, 2])
async def test_message_that_was_delivered_stays_with_its_subscription(
    how: list[str], waits: bool, crashes: int, mock_clock: trio.testing.MockClock
) -> None:
    """B1, V4: with its number of attempts."""
    async with testing.start() as world:
        async with world.connect() as broker:
            ids = await publish_and_forget(world, broker)
            async with broker.consumer(TOPIC, "a") as inbox:
                messages = await arrived(inbox)
                assert len(messages) == 3
                if waits:
                    await inbox.nack(
                        [message.id for message in messages], delay=timedelta(seconds=5)
                    )
                    await world.clock.settle()
                await amend_for_b(broker, how, ids)
                await world.crash()
        for _ in range(crashes - 1):
            await world.restart()
            await world.clock.advance(seconds=1)
            await world.crash()
        await world.restart()
        server = world.server
        async with world.connect() as broker, broker.consumer(TOPIC, "a") as inbox:
            await world.clock.advance(seconds=10)
            messages = await arrived(inbox)
            assert sorted(message.offset for message in messages) == [0, 1, 2]
            attempts = {message.offset: message.attempt for message in messages}
            assert attempts[1] == 2
            await inbox.ack([message.id for message in messages], durable=True)
            await world.clock.advance(hours=2)
            assert await arrived(inbox) == []
        assert world.server is server


class Gate:
    """Holds back the filler's reads of the log while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = trio.Event()
        self._open.set()
        read_due = LogReader.read_due

        async def read_later(*arguments: Any) -> Any:
            await self._open.wait()
            return await read_due(*arguments)

        monkeypatch.setattr(LogReader, "read_due", read_later)

    def close(self) -> None:
        self._open = trio.Event()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.mark.parametrize("how", CHANGES, ids="-".join)
@pytest.mark.parametrize("delivered", [False, True])
async def test_message_that_is_asked_for_before_it_is_filled_in_stays_with_its_subscription(
    how: list[str], delivered: bool, mock_clock: trio.testing.MockClock, gate: Gate
) -> None:
    """B1, N3: a consumer connects before the broker has read the message from the log again."""
    async with testing.start() as world:
        async with world.connect() as broker:
            ids = await publish_and_forget(world, broker)
            async with broker.consumer(TOPIC, "a") as inbox:
                if delivered:
                    assert len(await arrived(inbox)) == 3
                    await amend_for_b(broker, how, ids)
                await world.crash()
        if not delivered:
            await world.restart()
            async with world.connect() as broker:
                await world.clock.advance(seconds=1)
                await amend_for_b(broker, how, ids)
                await world.crash()
        gate.close()
        await world.restart()
        server = world.server
        async with world.connect() as broker, broker.consumer(TOPIC, "a") as inbox:
            assert await arrived(inbox) == []
            gate.open()
            messages = await arrived(inbox)
            assert sorted(message.offset for message in messages) == [0, 1, 2]
            assert all(message.redelivered for message in messages)
            if delivered:
                assert {message.offset: message.attempt for message in messages}[1] == 2
        assert world.server is server


@pytest.mark.parametrize("order", ["key", "topic"])
async def test_message_that_is_asked_for_before_it_is_filled_in_does_not_block_its_key(
    order: str, mock_clock: trio.testing.MockClock, gate: Gate
) -> None:
    """Q9: the broker takes the message back, and delivers it when it is filled in."""
    async with testing.start() as world:
        async with world.connect() as broker:
            producer = await broker.producer(TOPIC)
            await producer.send_many([b"0", b"1"], keys=["k", "k"])
            async with broker.consumer(TOPIC, "first", position="earliest") as inbox:
                await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
            await world.checkpoint()
            await world.clock.advance(seconds=1)
            asked = {"topic": TOPIC, "subscription": "a", "position": "earliest"}
            await broker.admin("subscriptions.create", **asked, policy={"order": order})
            async with broker.consumer(TOPIC, "a") as inbox:
                assert [message.offset for message in await arrived(inbox)] == [0]
                await world.clock.advance(seconds=1)  # the delivery is recorded
                await world.crash()
        gate.close()
        await world.restart()
        async with world.connect() as broker, broker.consumer(TOPIC, "a") as inbox:
            assert await arrived(inbox) == []
            gate.open()
            for offset in (0, 1):
                (message,) = await arrived(inbox)
                assert message.offset == offset
                await inbox.ack(message)


@pytest.mark.parametrize("way", ["order set later", "nacked, key not kept busy"])
async def test_message_that_waits_for_the_fill_is_not_passed_by_a_later_one_of_its_key(
    way: str, mock_clock: trio.testing.MockClock, gate: Gate
) -> None:
    """Q9: both were delivered before a crash, and only the later one is in the index after it."""
    skip = way != "order set later"
    asked = {"topic": TOPIC, "subscription": "a"}
    ordered = {"order": "key", "on_retry": "skip" if skip else "hold"}
    async with testing.start() as world:
        async with world.connect() as broker:
            producer = await broker.producer(TOPIC)
            await producer.send(b"0", key="k")
            async with broker.consumer(TOPIC, "first", position="earliest") as inbox:
                await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
                await world.checkpoint()
                await producer.send(b"1", key="k")
                await world.clock.advance(seconds=1)
            policy = ordered if skip else {}
            await broker.admin("subscriptions.create", **asked, position="earliest", policy=policy)
            async with broker.consumer(TOPIC, "a") as inbox:
                delivered = []
                while messages := await arrived(inbox):
                    delivered += [message.offset for message in messages]
                    if skip:
                        await inbox.nack([message.id for message in messages], SOON)
                    await world.clock.advance(seconds=0.1)
                assert delivered == [0, 1]
            await broker.admin("subscriptions.update", **asked, policy=ordered)
            await world.clock.advance(seconds=5)  # the attempts are recorded
            await world.crash()
        gate.close()
        await world.restart()
        async with world.connect() as broker, broker.consumer(TOPIC, "a") as inbox:
            assert await arrived(inbox) == []
            gate.open()
            for offset in (0, 1):
                (message,) = await arrived(inbox)
                assert (message.offset, message.attempt) == (offset, 2)
                await inbox.ack(message)


async def test_order_that_is_set_while_filling_holds_for_messages_not_yet_filled_in(
    mock_clock: trio.testing.MockClock, gate: Gate
) -> None:
    """Q9: a later message of the key waits for the fill."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer(TOPIC)
        await producer.send(b"0", key="k")
        async with broker.consumer(TOPIC, "first", position="earliest") as inbox:
            await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
        await world.checkpoint()
        await world.clock.advance(seconds=1)
        gate.close()
        asked = {"topic": TOPIC, "subscription": "a"}
        await broker.admin("subscriptions.create", **asked, position="earliest")
        async with broker.consumer(TOPIC, "a") as inbox:
            assert await arrived(inbox) == []
            await broker.admin("subscriptions.update", **asked, policy={"order": "key"})
            await producer.send(b"1", key="k")
            await world.clock.advance(seconds=1)
            assert await arrived(inbox) == []
            gate.open()
            for offset in (0, 1):
                (message,) = await arrived(inbox)
                assert message.offset == offset
                await inbox.ack(message)


@pytest.mark.parametrize("how", ["cancel", "reschedule"])
async def test_message_changed_while_its_payload_is_missing_stays_with_its_subscription(
    how: str, mock_clock: trio.testing.MockClock, gate: Gate
) -> None:
    """B1: the answer names the subscription that the message was chosen for."""
    held = Held()
    config = uncached(BrokerConfig(seed=0))
    async with testing.start(config=config, run=held) as world, world.connect() as broker:
        producer = await broker.producer(TOPIC)
        receipts = await producer.send_many([b"0", b"1", b"2", b"3"])
        async with broker.consumer(TOPIC, "a", position="earliest", permits=1) as inbox:
            await world.checkpoint()
            await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
            index = world.server.index
            (topic,) = world.server.registry.active.values()
            names = [path.name for path in world.index_directory.glob("*.segment")]
            merge = index.begin_compaction(names)
            merge.exclude(topic.id, np.array([1, 2]))
            merge.run_here()
            merge.finish({})
            gate.close()
            await inbox.seek("earliest")
            await trio.testing.wait_all_tasks_blocked()
            index.install_compaction(merge)  # removes 1 and 2, which are ready
            await broker.admin(
                "subscriptions.create", topic=TOPIC, subscription="b", position="earliest"
            )
            with held.hold(FETCH):
                await inbox.receive()
                await held.reached()
                outcome = await change(broker, how, [receipts[1].id])
                assert outcome.done.all()
                assert outcome.subscriptions == ("a",)
            await trio.testing.wait_all_tasks_blocked()
            gate.open()
            messages = {message.offset: message for message in await arrived(inbox)}
            assert sorted(messages) == [1, 2, 3]
            assert messages[1].redelivered
            assert (await broker.cancel([receipts[1].id])).handed_to("a").all()
