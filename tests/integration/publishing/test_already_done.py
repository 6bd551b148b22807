"""Tests of amending messages that expired or were dropped before their delivery."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, testing
from escapement.broker.broker import BrokerConfig
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.messages.numbered_messages import everything, publish, statuses

PATIENT = BrokerConfig(ack_wait_ms=86_400_000, seed=0)


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@pytest.mark.parametrize("to_dead_letter", [False, True])
async def test_message_that_expired_undelivered_has_status_over(
    mock_clock: MockClock, engine: Engine, kind: str, to_dead_letter: bool
) -> None:
    """B1, P10: a message delivered before it expired has status DELIVERED, also after a crash."""
    policy = {"expired_to_dead_letter": to_dead_letter}
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin(
                "subscriptions.create", topic="t", subscription="s", kind=kind, policy=policy
            )
            await broker.admin("topics.update", topic="t", policy={"ttl_ms": "1m"})
            await publish(broker, 2)
            async with broker.consumer("t", "s", kind=kind) as inbox:
                acked, failed = await arrived(inbox)
                assert await inbox.ack(acked, durable=True) == 1
                await failed.nack(delay="10m")
            await publish(broker, 2)
            await world.clock.advance(minutes=3)
            await check_statuses(broker)
        if to_dead_letter:
            await world.checkpoint()
        await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await check_statuses(broker)
            await broker.admin("topics.update", topic="t", policy={"ttl_ms": None})
            if kind == "shared":
                # A new subscription still gets them.
                past = {"topic": "t", "subscription": "past", "position": "earliest"}
                await broker.admin("subscriptions.create", **past)
                outcomes = await broker.cancel([0, 2], topic="t")
                assert statuses(outcomes) == [AmendStatus.DONE, AmendStatus.DONE]
                assert [one.handed for one in outcomes] == [("s",), ()]
                assert await everything(broker, "past") == [1, 3]


async def check_statuses(broker: escapement.Broker) -> None:
    """Check the statuses of messages 0 and 1, which were delivered, and 2 and 3, which were not."""
    answers = [await broker.cancel(range(5), topic="t")]
    (row,) = await broker.admin("subscriptions.list", topic="t")
    if row["kind"] == "shared":  # ordered subscriptions refuse reschedules
        answers.append(await broker.reschedule(range(5), topic="t", delay="1h"))
    for outcomes in answers:
        assert statuses(outcomes) == [
            AmendStatus.DELIVERED, AmendStatus.DELIVERED, AmendStatus.OVER, AmendStatus.OVER,
            AmendStatus.UNKNOWN,
        ]  # fmt: skip
        assert [one.handed for one in outcomes] == [("s",), ("s",), (), (), ()]


async def test_message_dropped_by_a_quota_has_status_over(mock_clock: MockClock) -> None:
    """B1, P10: a message delivered before it was dropped has status DELIVERED."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        policy = {"quota_messages": 2, "quota_action": "drop_oldest"}
        await publish(broker, 1, "s")
        await broker.admin("topics.update", topic="t", policy=policy)
        async with broker.consumer("t", "s") as inbox:
            (failed,) = await arrived(inbox)
            await failed.nack(delay="1s")
        await publish(broker, 4)
        await world.clock.advance(seconds=5)
        assert await everything(broker, "s") == [3, 4]
        outcomes = await broker.cancel(range(5), topic="t")
        assert statuses(outcomes)[:3] == [AmendStatus.DELIVERED, AmendStatus.OVER, AmendStatus.OVER]
        assert [one.handed for one in outcomes][:3] == [("s",), (), ()]


async def test_message_expired_for_one_subscription_is_amended_for_another(
    mock_clock: MockClock,
) -> None:
    """B1: the outcome names no subscription for which the message expired undelivered."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 2, "s")
        await broker.admin("topics.update", topic="t", policy={"ttl_ms": "1m"})
        await world.clock.advance(minutes=2)
        await broker.admin("topics.update", topic="t", policy={"ttl_ms": None})
        await broker.admin(
            "subscriptions.create", topic="t", subscription="all", position="earliest"
        )
        (moved,) = await broker.reschedule([0], topic="t", delay="1h")
        (cancelled,) = await broker.cancel([1], topic="t")
        assert (moved.status, cancelled.status) == (AmendStatus.DONE, AmendStatus.DONE)
        assert (moved.handed, cancelled.handed) == ((), ())
        assert await everything(broker, "all") == []
        await world.clock.advance(hours=1)
        assert await everything(broker, "all") == [0]
        assert await everything(broker, "s") == []
        assert statuses(await broker.cancel([0], topic="t")) == [AmendStatus.OVER]
