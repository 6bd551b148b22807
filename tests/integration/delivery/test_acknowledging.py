"""Acknowledgements, redelivery without them, and the bounds of unacknowledged messages."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.protocol import commands as wire
from escapement.testing import World, arrived
from support.faults.dying_brokers import lose_index
from support.wire_peer import wire_peer

PATIENT = BrokerConfig(ack_wait_ms=86_400_000, seed=0)
HOUR = timedelta(hours=1)


def numbers(messages: list[Any]) -> list[int]:
    return [message.offset for message in messages]


async def publish(broker: escapement.Broker, count: int, **times: Any) -> None:
    """Publish messages to topic t, which has a subscription s."""
    topics = (await broker.admin("topics.list"))["topics"]
    if not topics:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
    producer = await broker.producer("t")
    await producer.send_many([b"%d" % number for number in range(count)], **times)


async def stats(broker: escapement.Broker) -> dict[str, Any]:
    (found,) = await broker.admin("subscriptions.list", topic="t")
    return dict(found)


async def until_next(world: World) -> int:
    """Advance the clock until a message is delivered. Return the time passed in milliseconds."""
    begin_ms, delivered = world.clock.now_ms(), total(world)
    while total(world) == delivered:
        wake_ms = world.server.next_wake_ms()
        assert wake_ms is not None, "no message will ever be delivered"
        await world.clock.advance(ms=max(wake_ms - world.clock.now_ms(), 1))
    return world.clock.now_ms() - begin_ms


def total(world: World) -> int:
    (topic,) = world.server.registry.active.values()
    return sum(subscription.counts.delivered for subscription in topic.subscriptions())


# -- acknowledging -------------------------------------------------------------------


async def test_any_consumer_can_acknowledge_and_learns_how_many_took_effect(
    mock_clock: MockClock,
) -> None:
    """V17, V2: an acknowledgement by one consumer holds for all consumers."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 10)
        async with broker.consumer("t", "s", permits=10) as holder:
            held = await arrived(holder)
            assert numbers(held) == list(range(10))
            async with broker.consumer("t", "s") as other:
                assert await other.ack([m.id for m in held[:4]], durable=True) == 4
                assert await holder.ack([m.id for m in held[:6]], durable=True) == 2
                assert await holder.ack([held[0].id, held[0].id], durable=True) == 0
                await holder.nack([m.id for m in held], delay=timedelta(0))
                await world.clock.advance(seconds=1)
                again = [*await arrived(holder), *await arrived(other)]
                assert sorted(numbers(again)) == [6, 7, 8, 9]


async def test_range_acknowledgement_counts_only_new_and_existing_offsets(
    mock_clock: MockClock,
) -> None:
    """V17: both ends are included. Offsets acknowledged before or never published do not count."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 20)
        async with broker.consumer("t", "s", permits=3) as inbox:
            assert await inbox.ack_range(4, 9, durable=True) == 6
            assert await inbox.ack_range(8, 11, durable=True) == 2
            assert await inbox.ack_range(15, 10**12, durable=True) == 5
            assert await inbox.ack_range(4, 11, durable=True) == 0
            with pytest.raises(escapement.InvalidRequest):
                await inbox.ack_range(5, 4)
            got = []
            while messages := await arrived(inbox):
                got += numbers(messages)
                await inbox.ack([m.id for m in messages], durable=True)
            assert got == [0, 1, 2, 3, 12, 13, 14]
            await publish(broker, 1)
            assert numbers(await arrived(inbox)) == [20], (
                "the range does not cover a message published later"
            )


async def test_ranges_that_overlap_acknowledge_each_message_once(mock_clock: MockClock) -> None:
    """V17, invariant 9: they name more messages than there are, or than may wait for commit."""
    config = replace(PATIENT, limits=BrokerLimits(unwritten_acks=8))
    async with testing.start(config=config) as world, world.connect() as broker:
        await publish(broker, 16)
        ranges = np.array([(3, 9), (0, 5), (4, 6), (3, 9), (7, 9), (12, 10**12)])
        async with wire_peer(world) as peer:
            await peer.say(wire.Subscribe(1, 1, "t", "s", "shared", "earliest", 0, ""))
            heard = await peer.say(wire.Ack(2, 1, None, ranges[:, 0], ranges[:, 1]))
            assert heard == [wire.Acked(2, 9 + 4)]
        async with broker.consumer("t", "s") as inbox:
            assert numbers(await arrived(inbox)) == [9, 10, 11]


@pytest.mark.parametrize("crash", [False, True], ids=["at once", "after a crash"])
async def test_message_acknowledged_while_waiting_is_never_delivered(
    mock_clock: MockClock, crash: bool
) -> None:
    """V2: the message waits for its retry, for credit, or for its due time."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            await publish(broker, 6)
            await publish(broker, 4, delay=HOUR)
            async with broker.consumer("t", "s", permits=2) as inbox:
                first = await inbox.receive(), await inbox.receive()
                assert numbers(list(first)) == [0, 1]
                await inbox.nack([0, 1], delay=timedelta(minutes=1))
                await world.clock.settle()
                assert (await stats(broker))["nacked"] == 2
                ready = (await stats(broker))["ready"]
                assert ready == 2, "4 and 5: receiving 0 and 1 gave credit for 2 and 3"
                assert await inbox.ack([0, 5, 7, 8], durable=True) == 4
                if crash:
                    await world.crash()
        if crash:
            await world.restart()
        async with world.connect() as broker:
            got: list[int] = []
            async with broker.consumer("t", "s") as inbox:
                for _ in range(3):
                    messages = await arrived(inbox)
                    got += numbers(messages)
                    await inbox.ack([m.id for m in messages], durable=True)
                    await world.clock.advance(hours=1)
            assert got == [2, 3, 4, 1, 6, 9]
            assert (await stats(broker))["unacknowledged"] == 0


async def test_consumer_of_another_kind_or_a_second_exclusive_one_is_refused(
    mock_clock: MockClock,
) -> None:
    """P7: the refused consumer does not disturb the connected one."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("t")
        kinds = ("shared", "exclusive", "failover")
        for kind in kinds:
            async with broker.consumer("t", kind, kind=kind) as inbox:
                for other in {*kinds, "exclusive"} - ({kind} - {"exclusive"}):
                    with pytest.raises(escapement.Conflict):
                        async with broker.consumer("t", kind, kind=other):
                            pass
                receipt = await producer.send(b"m")
                assert numbers(await arrived(inbox)) == [receipt.id.offset]
                await inbox.ack(receipt.id, durable=True)
        async with broker.consumer("t", "exclusive", kind="exclusive") as next_one:
            receipt = await producer.send(b"m")
            assert numbers(await arrived(next_one))[-1] == receipt.id.offset


# -- redelivery ----------------------------------------------------------------------


async def test_unacknowledged_message_is_redelivered_forever(mock_clock: MockClock) -> None:
    """V1, V4: the wait doubles with each attempt, up to decades, and across a crash."""
    async with testing.start(config=BrokerConfig(ack_wait_ms=1000, seed=0)) as world:
        async with world.connect() as broker:
            await publish(broker, 1)
        # The message in flight at the crash is redelivered, which counts as another attempt.
        for attempts in (range(1, 16), range(15, 31)):
            async with world.connect() as broker, broker.consumer("t", "s") as inbox:
                for attempt in attempts:
                    (message,) = await arrived(inbox)
                    assert message.attempt == attempt
                    assert message.redelivered is (attempt > 1)
                    if attempt == attempts[-1]:
                        break
                    least_ms = 1000 * 2 ** (attempt - 1)
                    assert least_ms <= await until_next(world) <= least_ms * 1.331 + 10
                await world.crash()
            await world.restart()
        async with world.connect() as broker, broker.consumer("t", "s") as inbox:
            (message,) = await arrived(inbox)
            assert await inbox.ack(message.id, durable=True) == 1
            await world.clock.advance(days=10_000)
            assert await arrived(inbox) == []


async def test_every_nack_counts_an_attempt(mock_clock: MockClock) -> None:
    """V1, V4: across checkpoints and clean restarts."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            await publish(broker, 3)
        attempt = 0
        for _ in range(5):
            async with world.connect() as broker, broker.consumer("t", "s") as inbox:
                for _ in range(60):
                    attempt += 1
                    messages = await arrived(inbox)
                    assert numbers(messages) == [0, 1, 2]
                    assert {message.attempt for message in messages} == {attempt}
                    await inbox.nack([m.id for m in messages], delay=timedelta(0))
                    await world.clock.settle()
                await world.checkpoint()
            await world.stop()
            await world.restart()


async def test_coarse_tick_for_delays_does_not_stretch_ack_timeouts(
    mock_clock: MockClock,
) -> None:
    """V4, P3: a tick of an hour, and an ack_wait of a second."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="public/default")
        await broker.admin(
            "namespaces.enable_delayed_message",
            namespace="public/default",
            granularity_ms=86_400_000,
            tick_ms=3_600_000,
        )
        await publish(broker, 2)
        async with broker.consumer("t", "s", ack_wait=timedelta(seconds=1)) as inbox:
            assert numbers(await arrived(inbox)) == [0, 1]
            await inbox.nack([1], delay=timedelta(minutes=1))
            await world.clock.advance(ms=990)
            assert await arrived(inbox) == []
            await world.clock.advance(ms=20)
            (message,) = await arrived(inbox)
            assert (message.offset, message.attempt) == (0, 2)
            await message.ack(durable=True)
            await world.clock.advance(minutes=1)
            (message,) = await arrived(inbox)
            assert (message.offset, message.attempt) == (1, 2)


# -- bounds --------------------------------------------------------------------------


async def test_dispatch_pauses_at_the_bound_of_unacknowledged_messages(
    mock_clock: MockClock,
) -> None:
    """V3, invariant 9: it bounds messages in flight and in retry together; publishing goes on."""
    config = BrokerConfig(
        ack_wait_ms=86_400_000,
        limits=BrokerLimits(unacked_messages=20, ready_messages=30, deliver_messages=8),
        seed=0,
    )
    async with testing.start(config=config) as world, world.connect() as broker:
        await publish(broker, 200)
        async with (
            broker.consumer("t", "s", permits=1000) as inbox,
            broker.consumer("t", "s", permits=1000) as second,
        ):
            got = [*await arrived(inbox), *await arrived(second)]
            assert sorted(numbers(got)) == list(range(20))
            await publish(broker, 100)
            await world.clock.advance(minutes=1)
            assert await arrived(inbox) == await arrived(second) == []
            seen = await stats(broker)
            assert seen["in_flight"] == 20
            assert seen["ready"] <= 30
            # Messages that wait for a retry count as well.
            mine = numbers(await arrived(inbox))
            assert mine == []
            await inbox.nack(list(range(20)), delay=HOUR)
            await second.nack(list(range(20)), delay=HOUR)
            await world.clock.settle()
            assert (await stats(broker))["nacked"] == 20
            assert await arrived(inbox) == await arrived(second) == []
            assert await inbox.ack_range(0, 4, durable=True) == 5
            some = [*await arrived(inbox), *await arrived(second)]
            assert sorted(numbers(some)) == list(range(20, 25))
            await inbox.ack(numbers(some), durable=True)
            done = {*range(5), *numbers(some)}
            await world.clock.advance(hours=1)
            for _ in range(100):
                messages = [*await arrived(inbox), *await arrived(second)]
                if not messages:
                    break
                assert len(messages) <= 20
                # Retries take no room from other messages, and their number is bounded too.
                assert (await stats(broker))["ready"] <= 30 + 20
                done.update(numbers(messages))
                await inbox.ack(numbers(messages), durable=True)
            assert done == set(range(300))


async def test_exclusive_subscription_pauses_at_the_bound_of_unacknowledged_messages(
    mock_clock: MockClock,
) -> None:
    """V3, invariant 9."""
    config = BrokerConfig(
        limits=BrokerLimits(unacked_messages=15, deliver_messages=8), ack_wait_ms=86_400_000, seed=0
    )
    async with testing.start(config=config) as world, world.connect() as broker:
        producer = await broker.producer("t")
        for _ in range(10):
            await producer.send_many([b"m"] * 10)
        async with broker.consumer(
            "t", "log", kind="exclusive", position="earliest", permits=1000
        ) as inbox:
            got: list[int] = []
            while messages := await arrived(inbox):
                assert len(messages) <= 15
                got += numbers(messages)
                await inbox.ack(numbers(messages), durable=True)
            assert got == list(range(100))


# -- clocks and policies -------------------------------------------------------------


async def test_setting_the_clock_back_leaves_in_flight_messages_alone(
    mock_clock: MockClock,
) -> None:
    """Invariants 2, 3 and 5: no early redelivery; acknowledgements and timeouts work as before."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 4)
        await world.clock.advance(hours=2)
        async with broker.consumer("t", "s", ack_wait=timedelta(minutes=1)) as inbox:
            assert numbers(await arrived(inbox)) == [0, 1, 2, 3]
            await inbox.nack([3], delay=timedelta(minutes=10))
            await world.clock.advance(seconds=1)
            world.clock.set_back(3_600_000)
            await world.clock.advance(seconds=30)
            assert await arrived(inbox) == []
            assert (await stats(broker))["in_flight"] == 3
            assert await inbox.ack([0], durable=True) == 1
            await inbox.nack([1], delay=timedelta(seconds=5))
            await world.clock.advance(seconds=4)
            assert await arrived(inbox) == []
            await world.clock.advance(seconds=1)
            (again,) = await arrived(inbox)
            assert (again.offset, again.attempt) == (1, 2)
            await again.ack(durable=True)
            await world.clock.advance(hours=1)
            assert await arrived(inbox) == []
            await world.clock.advance(seconds=25)  # a minute after its delivery
            (late,) = await arrived(inbox)
            assert (late.offset, late.attempt) == (2, 2)
            await late.ack(durable=True)
            await world.clock.advance(minutes=10)
            (last,) = await arrived(inbox)
            assert (last.offset, last.attempt) == (3, 2)


async def test_nacked_message_waits_until_it_is_due_again_after_the_clock_was_set_back(
    mock_clock: MockClock,
) -> None:
    """Invariants 2 and 4: it holds up no message that is due before it."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 2)
        async with broker.consumer("t", "s") as inbox:
            assert numbers(await arrived(inbox)) == [0, 1]
            world.clock.set_back(3_600_000)
            await world.clock.advance(seconds=1)
            await inbox.nack([0], delay=timedelta(0))
            await world.clock.settle()
            await publish(broker, 1)
            await publish(broker, 1, delay=timedelta(minutes=30))
            (new,) = await arrived(inbox)
            assert new.offset == 2
            await world.clock.advance(minutes=31)
            (new,) = await arrived(inbox)
            assert new.offset == 3
            await world.clock.advance(minutes=28)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            (again,) = await arrived(inbox)
            assert (again.offset, again.attempt) == (0, 2)


async def test_disabling_delays_leaves_pending_messages_their_times(
    mock_clock: MockClock,
) -> None:
    """P2: also after a restart with a lost index."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            await broker.admin("namespaces.create", namespace="public/default")
            await publish(broker, 3, delay=[timedelta(hours=h) for h in (3, 1, 2)])
            await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
            producer = await broker.producer("t")
            with pytest.raises(escapement.DelaysDisabled):
                await producer.send_many([b"a", b"b"], delay=[timedelta(0), HOUR])
        await world.crash()
        lose_index(world)
        await world.restart()
        async with world.connect() as broker, broker.consumer("t", "s") as inbox:
            for expected in (1, 2, 0):
                await world.clock.advance(minutes=59, seconds=59)
                assert await arrived(inbox) == []
                await world.clock.advance(seconds=1)
                (message,) = await arrived(inbox)
                assert message.offset == expected
                await message.ack(durable=True)
            receipt = await (await broker.producer("t")).send(b"at once")
            assert receipt.id.offset == 3, "nothing of the refused batch was stored"
            assert numbers(await arrived(inbox)) == [3]
