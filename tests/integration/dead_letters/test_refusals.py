"""Inbox entries and dead letters whose topic refuses them are kept, and the broker goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.inbox.refusals import Refusals, ends_the_broker
from escapement.broker.limits import BrokerLimits
from escapement.broker.topic.topic import Topic
from escapement.client.broker import Broker
from escapement.client.consuming.batch import Message
from escapement.errors import (
    BacklogFull,
    EscapementError,
    InvalidRequest,
    LeaseLost,
    LimitExceeded,
    LogDamaged,
)
from escapement.names import NamespaceName, TopicName
from escapement.storage.catalog.catalog import Kind
from escapement.storage.engine.base import TransactionAborted
from escapement.testing import World, arrived
from support.storage.inbox_entries import inbox_entry, post

CALM = BrokerConfig(seed=0)
NAMES = {"topic": "t/n/x", "subscription": "s"}
# The first may be retried, the second may not.
REFUSALS = [BacklogFull("there is too much"), LimitExceeded("there are too many topics")]


@contextmanager
def refusing(world: World, target: str, error: EscapementError) -> Iterator[Callable[[], int]]:
    """Refuse the topic ``target`` with ``error``. Yield a function that counts attempts."""
    registry, tries = world.server.registry, 0
    ensure_topic = registry.ensure_topic

    async def refuse(name: TopicName) -> Topic:
        nonlocal tries
        if name.full == target:
            tries += 1
            raise error
        return await ensure_topic(name)

    registry.ensure_topic = refuse  # type: ignore[method-assign]
    try:
        yield lambda: tries
    finally:
        registry.ensure_topic = ensure_topic  # type: ignore[method-assign]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.code)
async def test_refused_inbox_entry_is_retried_with_back_off_while_others_go_on(
    error: EscapementError, caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    """B2: the refusal is logged once and shown in the statistics; the entry is moved once."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        with refusing(world, "t/n/x", error) as tries, caplog.at_level(logging.WARNING):
            await post(world, [inbox_entry("t/n/x", "one"), inbox_entry("t/n/y", "two")])
            for _ in range(300):
                await world.clock.advance(seconds=1)
            assert 8 <= tries() <= 11, "attempts after 1, 2, 4, ... 60 seconds"
            assert len([one for one in caplog.records if "inbox entries for" in one.message]) == 1
            stats = await broker.admin("broker.stats")
            assert stats["inbox_blocked"] == [f"t/n/x: {error}"]
            assert (await broker.admin("topics.stats", topic="t/n/y"))["next_offset"] == 1
        await world.clock.advance(minutes=1)
        await world.clock.advance(seconds=2)
        assert (await broker.admin("topics.stats", topic="t/n/x"))["next_offset"] == 1
        assert (await broker.admin("broker.stats"))["inbox_blocked"] == []


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.code)
async def test_dead_messages_wait_for_a_refused_topic_and_are_dead_lettered_once(
    error: EscapementError, caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    """V4: dead messages of another subscription do not wait for them."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producers = []
        for topic in ("t/n/x", "t/n/y"):
            names = {"topic": topic, "subscription": "s", "policy": {"max_deliveries": 1}}
            await broker.admin("subscriptions.create", **names)
            producers.append(await broker.producer(topic))
        with refusing(world, "t/n/x-s-DLQ", error), caplog.at_level(logging.WARNING):
            for topic, producer in zip(("t/n/x", "t/n/y"), producers, strict=True):
                await producer.send_many([b"bad"] * 3)
                async with broker.consumer(topic, "s") as inbox:
                    for message in await arrived(inbox):
                        await message.nack()
                    await world.clock.settle()
            for _ in range(10):
                await world.clock.advance(seconds=1)
            stats = await broker.admin("broker.stats")
            assert [str(error) in one for one in stats["dead_letters_waiting"]] == [True]
            assert len([one for one in caplog.records if "dead letters wait" in one.message]) == 1
            elsewhere = {"topic": "t/n/y", "subscription": "s"}
            assert len(await broker.admin("dlq.list", **elsewhere, count=9)) == 3
            async with broker.consumer("t/n/x", "s") as inbox:
                assert await arrived(inbox) == [], "dead messages are not redelivered"
        await world.clock.advance(minutes=1)
        await world.clock.advance(seconds=2)
        assert len(await broker.admin("dlq.list", **NAMES, count=9)) == 3
        (row,) = await broker.admin("subscriptions.list", topic="t/n/x")
        assert (row["dead_waiting"], row["unacknowledged"]) == (0, 0)


async def fail_one_message(world: World, broker: Broker) -> None:
    """Publish a message, fail its delivery and wait some seconds."""
    producer = await broker.producer("t/n/x")
    await producer.send(b"bad")
    async with broker.consumer("t/n/x", "s") as inbox:
        (message,) = await arrived(inbox)
        await message.nack()
        await world.clock.advance(seconds=5)


async def test_dead_letter_topic_in_a_namespace_being_deleted_does_not_end_the_broker(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="t/going")
        policy = {"max_deliveries": 1, "dead_letter_topic": "t/going/dead"}
        await broker.admin("subscriptions.create", **NAMES, policy=policy)
        await world.server.registry.namespaces.mark_for_deletion(NamespaceName.parse("t/going"))
        await fail_one_message(world, broker)
        assert await world.server.services.inbox_relay.waiting(9) == [], (
            "the entry would be deleted with the namespace"
        )
        (row,) = await broker.admin("subscriptions.list", topic="t/n/x")
        assert row["dead_waiting"] == 1
        await broker.admin("namespaces.delete", namespace="t/going", force=True)
        for _ in range(60):
            await world.clock.advance(seconds=1)
        assert len(await broker.admin("dlq.list", **NAMES, count=9)) == 1


def test_only_log_damage_and_a_lost_lease_end_the_broker() -> None:
    assert ends_the_broker(LogDamaged("x"))
    assert ends_the_broker(LeaseLost("x"))
    assert not ends_the_broker(TransactionAborted("x"))
    assert not any(ends_the_broker(error) for error in REFUSALS)


def test_refusal_waits_double_up_to_a_minute_and_reset_after_success() -> None:
    refusals, now_s, waits = Refusals(), 0.0, []
    for _ in range(9):
        refusals.refused("a", "why", now_s)
        waits.append(refusals.until_s("a") - now_s)
        now_s = refusals.until_s("a")
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert not refusals.refused("a", "why", now_s)
    assert refusals.refused("a", "another reason", now_s)
    refusals.over("a")
    assert refusals.until_s("a") == 0


async def test_dead_messages_wait_for_their_topic_without_automatic_topic_creation(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: they are dead-lettered once the topic is created."""
    config = replace(CALM, auto_create_topics=False)
    async with testing.start(config=config) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        await fail_one_message(world, broker)
        (waits,) = (await broker.admin("broker.stats"))["dead_letters_waiting"]
        assert "there is no topic t/n/x-s-DLQ" in waits
        await broker.admin("topics.create", topic="t/n/x-s-DLQ")
        await world.clock.advance(minutes=1)
        (row,) = await broker.admin("dlq.list", **NAMES)
        assert row["payload"] == b"bad"
        assert (await broker.admin("broker.stats"))["dead_letters_waiting"] == []


@pytest.mark.parametrize("replaced", ["sought", "deleted"])
async def test_messages_that_die_again_during_a_back_off_are_dead_lettered(
    replaced: str, mock_clock: trio.testing.MockClock
) -> None:
    """V1: the back-off began before the subscription was sought, or deleted and created again."""
    config = replace(CALM, auto_create_topics=False)
    async with testing.start(config=config) as world, world.connect() as broker:
        policy = {"max_deliveries": 1}
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("subscriptions.create", **NAMES, policy=policy)
        for _ in range(3):
            await fail_one_message(world, broker)
        if replaced == "sought":
            await broker.admin("subscriptions.seek", **NAMES, position="latest")
        else:
            await broker.admin("subscriptions.delete", **NAMES)
            await broker.admin("subscriptions.create", **NAMES, policy=policy)
        await fail_one_message(world, broker)
        await broker.admin("topics.create", topic="t/n/x-s-DLQ")
        for _ in range(120):
            await world.clock.advance(seconds=1)
        assert len(await broker.admin("dlq.list", **NAMES, count=9)) == 1
        (row,) = await broker.admin("subscriptions.list", topic="t/n/x")
        assert row["dead_waiting"] == 0


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_deliveries_go_on_when_dead_messages_leave_room(
    kind: Kind, mock_clock: trio.testing.MockClock
) -> None:
    """Invariant 4: dead messages that wait count towards the bound of unacknowledged messages."""
    limits = BrokerLimits(unacked_messages=2)
    config = replace(CALM, auto_create_topics=False, limits=limits)
    async with testing.start(config=config) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t/n/x")
        policy = {"max_deliveries": 1}
        await broker.admin("subscriptions.create", **NAMES, kind=kind, policy=policy)
        producer = await broker.producer("t/n/x")
        await producer.send_many([b"bad", b"bad", b"good"])
        async with broker.consumer("t/n/x", "s", kind=kind) as inbox:
            await inbox.nack(await arrived(inbox))
            await world.clock.advance(seconds=5)
            assert await arrived(inbox) == []
            await broker.admin("topics.create", topic="t/n/x-s-DLQ")
            found: list[Message] = []
            for _ in range(20):
                await world.clock.advance(seconds=1)
                found += await arrived(inbox)
            assert [message.payload for message in found] == [b"good"]


async def test_dead_letters_subscription_must_be_shared(mock_clock: trio.testing.MockClock) -> None:
    """V1: ``dlq`` searches by due time, which the log order of other kinds does not have."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        dead_letters = {"topic": "t/n/x-s-DLQ", "subscription": "dead-letters"}
        with pytest.raises(
            InvalidRequest, match="dead-letters keeps dead letters and must be shared"
        ):
            await broker.admin("subscriptions.create", **dead_letters, kind="exclusive")
        with pytest.raises(
            InvalidRequest, match="dead-letters keeps dead letters and must be shared"
        ):
            async with broker.consumer(*dead_letters.values(), kind="failover"):
                pass
        await broker.admin("subscriptions.create", **dead_letters)
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        await fail_one_message(world, broker)
        assert len(await broker.admin("dlq.list", **NAMES)) == 1
