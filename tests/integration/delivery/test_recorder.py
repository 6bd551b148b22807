"""Recorded deliveries: the successor of a killed broker knows the fired messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.delivery.recorder import AFTER_MS
from escapement.broker.limits import BrokerLimits
from escapement.storage.journal import journal
from escapement.storage.journal.entry import AttemptColumns
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.faults.dying_brokers import lose_index

PATIENT = BrokerConfig(ack_wait_ms=86_400_000, seed=0)
ONE, TWO = (replace(PATIENT, limits=BrokerLimits(unacked_messages=n)) for n in (1, 2))
KINDS = ["shared", "exclusive"]
NAMES = {"topic": "t", "subscription": "s"}
HOUR = timedelta(hours=1)


async def recorded(world: World) -> None:
    """Wait until all deliveries of messages still in flight are recorded."""
    await world.clock.advance(ms=2 * AFTER_MS)


def attempts_in(outage: Outage) -> Iterator[AttemptColumns]:
    """Yield the attempts in the journal."""
    connection = outage.database.connect()
    try:
        for row in journal.read(connection, 0):
            if row.entry.attempts is not None:
                yield row.entry.attempts
    finally:
        connection.close()


async def status_of(broker: escapement.Broker, offset: int) -> tuple[str, str, int | None]:
    """Return the state of a message, and its state and attempts in the subscription."""
    history = await broker.show(offset, "t")
    (status,) = history.subscriptions
    return history.state, status.state, status.attempts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpoint", ["none", "before", "after", "between"])
@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_successor_knows_which_messages_were_in_flight_and_their_attempts(
    mock_clock: MockClock, kind: str, checkpoint: str, index: str
) -> None:
    """Q2, V4: fired messages are on record, in the journal or in a checkpoint."""
    async with testing.start(config=TWO) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, kind=kind)
            await (await broker.producer("t")).send_many([b"%d" % n for n in range(4)])
        for attempt in (1, 2, 3):
            async with world.connect() as broker:
                async with broker.consumer("t", "s", kind=kind) as inbox:
                    messages = await arrived(inbox)
                    if checkpoint == "before":
                        await world.checkpoint()
                    assert [(m.offset, m.attempt) for m in messages] == [(0, attempt), (1, attempt)]
                    await recorded(world)
                    if checkpoint in ("after", "between"):
                        await world.checkpoint()
                    await world.crash()
            if index == "lost":
                lose_index(world)
            await world.restart()
            if checkpoint == "between":  # by a broker that delivered nothing
                await world.checkpoint()
                await world.crash()
                await world.restart()
            async with world.connect() as broker:
                state, _, attempts = await status_of(broker, 1)
                assert (state, attempts) == ("fired", attempt)
                assert (await status_of(broker, 3))[2] == 0


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
async def test_messages_in_flight_at_a_crash_count_as_delivered(
    mock_clock: MockClock, change: str
) -> None:
    """B1: a message may have been in flight without a record, so no message is changed."""
    async with testing.start(config=ONE) as world:
        async with world.connect() as broker:
            for name in ("s", "idle"):
                await broker.admin("subscriptions.create", topic="t", subscription=name)
            await (await broker.producer("t")).send_many([b"0", b"1"])
            async with broker.consumer("t", "s") as inbox:
                (message,) = await arrived(inbox)
                await recorded(world)
                await world.crash()
        await world.restart()
        async with world.connect() as broker:
            if change == "cancel":
                outcomes = await broker.cancel([0, 1], topic="t")
            else:
                outcomes = await broker.reschedule([0, 1], delay=HOUR, topic="t")
            assert [one.status for one in outcomes] == [
                AmendStatus.DELIVERED,
                AmendStatus.DELIVERED,
            ]
            assert [set(one.handed) for one in outcomes] == [{"s", "idle"}, {"s", "idle"}]
            async with broker.consumer("t", "s") as inbox, broker.consumer("t", "idle") as idle:
                (again,) = await arrived(inbox)
                assert (again.offset, again.attempt) == (message.offset, 2)
                (first,) = await arrived(idle)
                assert (first.attempt, first.redelivered) == (1, True)


async def test_quickly_acknowledged_message_writes_no_attempt_to_the_journal(
    mock_clock: MockClock,
) -> None:
    """Recording costs nothing if the acknowledgement follows quickly."""
    outage = Outage()
    async with testing.start(config=PATIENT, engine=outage.engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES)
            producer = await broker.producer("t")
            async with broker.consumer("t", "s") as inbox:
                for _ in range(20):
                    await producer.send_many([b"quick"] * 10)
                    await inbox.ack([message.id for message in await arrived(inbox)])
                    await world.clock.advance(ms=AFTER_MS - 1)
                await world.clock.advance(ms=AFTER_MS)
                assert list(attempts_in(outage)) == []
                await producer.send_many([b"slow"] * 3)
                await inbox.ack([(await arrived(inbox))[1].id])
                await recorded(world)
                (found,) = attempts_in(outage)
                assert found.offset.tolist() == [200, 202]
                assert found.attempt.tolist() == [1, 1]


async def test_each_delivery_is_recorded_once(mock_clock: MockClock) -> None:
    """The duration for which a consumer holds a message does not matter."""
    outage = Outage()
    async with testing.start(config=PATIENT, engine=outage.engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES)
            await (await broker.producer("t")).send_many([b""] * 5)
            async with broker.consumer("t", "s") as inbox:
                messages = await arrived(inbox)
                await world.clock.advance(seconds=10)
                assert [len(one) for one in attempts_in(outage)] == [5]
                await inbox.nack([messages[2].id], timedelta(0))
                assert [message.attempt for message in await arrived(inbox)] == [2]
                await world.clock.advance(seconds=10)
                found = [one.attempt.tolist() for one in attempts_in(outage)]
                assert found == [[1] * 5, [1], [2]]


async def test_delivery_is_recorded_after_the_clock_was_set_back(
    mock_clock: MockClock,
) -> None:
    """Q2: the wall clock cannot tell how long the message was in flight."""
    outage = Outage()
    async with testing.start(config=PATIENT, engine=outage.engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES)
            await (await broker.producer("t")).send(b"")
            async with broker.consumer("t", "s") as inbox:
                await arrived(inbox)
                world.clock.set_back(3_600_000)
                await recorded(world)
                assert [one.offset.tolist() for one in attempts_in(outage)] == [[0]]
