"""Tests of cancel, reschedule and run now after a crash of the broker (B1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.config import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.faults.dying_brokers import lose_index

KINDS = ["shared", "exclusive", "failover"]
LATER = timedelta(hours=1)


async def change(broker: escapement.Broker, how: str, ids: list[Any]) -> Any:
    if how == "cancel":
        return await broker.cancel(ids)
    if how == "reschedule":
        return await broker.reschedule(ids, delay=LATER)
    return await broker.run_now(ids)


async def deliver_and_crash(world: World, kind: str = "shared") -> list[Any]:
    """Return the ids of an acknowledged message, two delivered messages and a delayed one."""
    async with world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await producer.send(b"done")
            (done,) = await arrived(inbox)
            await inbox.ack([done.id], durable=True)
            await producer.send_many([b"had", b"had too"])
            had = await arrived(inbox)
            assert len(had) == 2
            later = await producer.send(b"later", delay=timedelta(days=1))
            await world.crash()
    await world.restart()
    return [done.id, *(message.id for message in had), later.id]


@pytest.mark.parametrize("how", ["cancel", "reschedule", "run_now"])
async def test_message_delivered_before_a_crash_is_not_amended(
    how: str, mock_clock: trio.testing.MockClock
) -> None:
    """B1: the outcome is DELIVERED although the delivery was not recorded before the crash."""
    async with testing.start() as world:
        ids = await deliver_and_crash(world)
        async with world.connect() as broker:
            outcome = await change(broker, how, ids)
            assert (outcome.statuses == AmendStatus.DELIVERED).tolist() == [True, True, True, False]
            assert outcome.done.tolist() == [False, False, False, True]
            assert outcome.handed_to("s").tolist() == [True, True, True, False]
            async with broker.consumer("x", "s") as inbox:
                again = [message for message in await arrived(inbox) if message.payload != b"later"]
                assert [message.payload for message in again] == [b"had", b"had too"]
                assert all(message.redelivered for message in again)


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_cancel_names_a_subscription_that_ignores_delays(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """B1: it may have received every message that was published before the crash."""
    async with testing.start() as world:
        ids = await deliver_and_crash(world, kind)
        async with world.connect() as broker:
            outcome = await broker.cancel(ids)
            assert (outcome.statuses == AmendStatus.DELIVERED).all()
            assert outcome.handed_to("s").all()


async def test_cancel_is_done_for_subscriptions_that_had_nothing_before_the_crash(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: the outcome names subscriptions that may have had a message. New ones never get it."""
    async with testing.start() as world:
        ids = await deliver_and_crash(world)
        async with world.connect() as broker:
            await broker.admin(
                "subscriptions.create", topic="x", subscription="new", position="earliest"
            )
            outcome = await broker.cancel(ids[1:])
            assert outcome.done.all()
            assert outcome.handed_to("s").tolist() == [True, True, False]
            assert outcome.subscriptions == ("s",)
            async with broker.consumer("x", "new") as inbox:
                assert [message.payload for message in await arrived(inbox)] == [b"done"]


@pytest.mark.parametrize("again", ["cancel", "reschedule", "run_now"])
@pytest.mark.parametrize("how", ["cancel", "reschedule", "run_now"])
@pytest.mark.parametrize("crashes", [False, True], ids=["stays up", "crashes"])
async def test_second_change_names_who_may_have_had_the_message_before_a_crash(
    how: str, again: str, crashes: bool, mock_clock: trio.testing.MockClock
) -> None:
    """B1: also if the broker dies between the changes. The subscription keeps the message."""
    async with testing.start() as world:
        ids = await deliver_and_crash(world)
        async with world.connect() as broker:
            await broker.admin(
                "subscriptions.create", topic="x", subscription="new", position="earliest"
            )
            first = await change(broker, how, ids[1:3])
            assert first.done.all()
            assert first.handed_to("s").all()
            if crashes:
                await world.crash()
                await world.restart()
        async with world.connect() as broker:
            second = await change(broker, again, ids[1:3])
            assert second.handed_to("s").all()
            # A message that was due before the second crash may have gone to the other one too.
            due = crashes and how == "run_now"
            assert second.subscriptions == (("new", "s") if due else ("s",))
            async with broker.consumer("x", "s") as inbox:
                kept = await arrived(inbox)
                assert [message.payload for message in kept] == [b"had", b"had too"]
                assert all(message.redelivered for message in kept)


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_cancelled_message_stays_with_an_ordered_subscription_that_may_have_had_it(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """B1: it gets the message again, marked redelivered."""
    async with testing.start() as world:
        ids = await deliver_and_crash(world, kind)
        async with world.connect() as broker:
            await broker.admin(
                "subscriptions.create", topic="x", subscription="new", position="earliest"
            )
            for _ in range(2):
                outcome = await broker.cancel(ids[1:3])
                assert outcome.done.all()
                assert outcome.subscriptions == ("s",)
            async with broker.consumer("x", "s", kind=kind) as inbox:
                kept = [message for message in await arrived(inbox) if message.payload != b"later"]
                assert [message.payload for message in kept] == [b"had", b"had too"]
                assert all(message.redelivered for message in kept)


async def test_cancel_before_a_crash_leaves_no_doubt_after_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: a subscription that had not received a cancelled message is never named."""
    async with testing.start() as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            await broker.admin("subscriptions.create", topic="x", subscription="s")
            message = await producer.send(b"cancelled")
            assert (await broker.cancel([message.id])).done.all()
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            outcome = await broker.cancel([message.id])
            assert outcome.done.all()
            assert outcome.subscriptions == ()


async def test_postponed_message_can_be_cancelled_after_a_crash(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: its first due time was before the crash, its current one is not."""
    async with testing.start() as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            await broker.admin("subscriptions.create", topic="x", subscription="s")
            message = await producer.send(b"postponed")
            assert (await broker.reschedule([message.id], delay=LATER)).done.all()
            await world.clock.advance(seconds=10)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            outcome = await broker.cancel([message.id])
            assert outcome.done.all()
            assert outcome.subscriptions == ()


async def test_message_published_after_a_crash_can_be_cancelled(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: also after a later clean stop."""
    async with testing.start() as world:
        await deliver_and_crash(world)
        async with world.connect() as broker:
            producer = await broker.producer("x")
            await world.clock.advance(seconds=1)
            fresh = await producer.send(b"fresh")
            assert (await broker.cancel([fresh.id])).done.all()
            kept = await producer.send(b"kept")
        await world.stop()
        await world.restart()
        async with world.connect() as broker:
            assert (await broker.cancel([kept.id])).done.all()


@pytest.mark.parametrize("how", ["cancel", "reschedule", "run_now"])
@pytest.mark.parametrize("checkpoints", [0, 2])
@pytest.mark.parametrize("crashes", [False, True], ids=["stays up", "crashes"])
async def test_kept_message_comes_in_the_order_of_its_key(
    how: str, crashes: bool, checkpoints: int, mock_clock: trio.testing.MockClock
) -> None:
    """Q9: earlier messages of its key are still unread in the index when it is changed."""
    config = BrokerConfig(seed=0, limits=BrokerLimits(ready_messages=20))
    async with testing.start(config=config) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            await broker.admin(
                "subscriptions.create", topic="x", subscription="s", policy={"order": "key"}
            )
            await producer.send_many([b"first"] * 60, keys=["first"] * 60)
            receipts = await producer.send_many([b"%d" % n for n in range(20)], keys=["k"] * 20)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await broker.admin(
                "subscriptions.create", topic="x", subscription="new", position="earliest"
            )
            outcome = await change(broker, how, [receipts[12].id])
            assert outcome.done.all()
            assert outcome.subscriptions == ("s",)
            producer = await broker.producer("x")
            for _ in range(checkpoints):
                await world.clock.advance(seconds=1)
                await producer.send(b"first", key="first")
                await world.checkpoint()
            if crashes:
                await world.crash()
                await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s", permits=5) as inbox:
            order = []
            while messages := await arrived(inbox):
                of_key = [message for message in messages if message.payload != b"first"]
                order += [message.payload for message in of_key]
                assert all(message.redelivered for message in of_key)
                await inbox.ack([message.id for message in messages])
        assert order == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_quota_drops_a_kept_message_by_its_earlier_due_time(
    index: str, mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P10: the message is later for another subscription, which still gets it then.

    A broker that rebuilds its index drops the same message.
    """
    async with testing.start(engine=engine) as world:
        ids = await deliver_and_crash(world)
        async with world.connect() as broker:
            new = {"topic": "x", "subscription": "new", "position": "earliest"}
            await broker.admin("subscriptions.create", **new)
            outcome = await change(broker, "reschedule", ids[1:2])
            assert outcome.done.all()
            assert outcome.subscriptions == ("s",)
            await world.clock.advance(seconds=1)
            await (await broker.producer("x")).send(b"newer")
            await world.crash()
        if index == "lost":
            lose_index(world)
        await world.restart()
        async with world.connect() as broker:
            quota = {"quota_messages": 2, "quota_action": "drop_oldest"}
            await broker.admin("topics.update", topic="x", policy=quota)
            await world.clock.advance(seconds=2)
            rows = await broker.admin("subscriptions.list", topic="x")
            assert {row["subscription"]: row["dropped"] for row in rows} == {"s": 1, "new": 1}
            await broker.admin("topics.update", topic="x", policy={"quota_messages": 0})
            await world.clock.advance(seconds=LATER.total_seconds())
            for name, left in [("s", []), ("new", [b"had"])]:
                async with broker.consumer("x", name) as inbox:
                    values = [message.payload for message in await arrived(inbox)]
                    assert values == [b"had too", b"newer", *left]


async def test_subscription_created_after_a_crash_is_never_named_for_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: not after a clean restart either."""
    async with testing.start() as world:
        ids = await deliver_and_crash(world)
        async with world.connect() as broker:
            await world.clock.advance(seconds=1)
            await broker.admin(
                "subscriptions.create", topic="x", subscription="new", position="earliest"
            )
        await world.stop()
        await world.restart()
        async with world.connect() as broker:
            outcome = await broker.cancel(ids[1:3])
            assert outcome.done.all()
            assert outcome.subscriptions == ("s",)


async def test_subscription_created_before_the_clock_was_set_back_is_named_after_a_crash(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: it existed before the crash, although its time of creation is later."""
    async with testing.start() as world:
        async with world.connect() as broker:
            await broker.admin("topics.create", topic="x")
            await world.clock.advance(seconds=10)
            await broker.admin("subscriptions.create", topic="x", subscription="s")
        await world.stop()
        world.clock.set_back(5_000)
        await world.restart()
        async with world.connect() as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s") as inbox:
                receipt = await producer.send(b"had")
                assert [message.redelivered for message in await arrived(inbox)] == [False]
                await world.crash()
        await world.restart()
        async with world.connect() as broker:
            outcome = await broker.cancel([receipt.id])
            assert (outcome.statuses == AmendStatus.DELIVERED).all()
            assert outcome.subscriptions == ("s",)
            async with broker.consumer("x", "s") as inbox:
                assert [message.redelivered for message in await arrived(inbox)] == [True]
