"""Policies in a running broker: updates, display, immediate effect and durability."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import InvalidRequest, NotFound
from escapement.testing import World, arrived

CALM = BrokerConfig(seed=0)
NAMES = {"topic": "x", "subscription": "s"}


async def attempts(world: World, inbox: escapement.Inbox, seconds: int) -> list[int]:
    """Return the attempt numbers of messages that arrive within that many seconds."""
    await world.clock.advance(seconds=seconds)
    return [message.attempt for message in await arrived(inbox)]


async def test_changed_back_off_applies_to_connected_consumers(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: the back-off begins at ack_wait and doubles, between min_backoff and max_backoff."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"jitter": 0})
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            await producer.send(b"hard")
            assert await attempts(world, inbox, 0) == [1]
            policy = {"ack_wait_ms": "10s", "max_backoff_ms": "15s"}
            await broker.admin("subscriptions.update", **NAMES, policy=policy)
            # In-flight messages keep their deadline: the broker's default of 30 s.
            assert await attempts(world, inbox, 29) == []
            assert await attempts(world, inbox, 1) == [2]
            assert await attempts(world, inbox, 14) == []
            assert await attempts(world, inbox, 1) == [3]
            await broker.admin("subscriptions.update", **NAMES, policy={"max_backoff_ms": None})
            assert await attempts(world, inbox, 15) == [4]
            assert await attempts(world, inbox, 79) == []
            assert await attempts(world, inbox, 1) == [5]


async def test_ack_wait_of_a_consumer_overrides_the_policy_within_its_bounds(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: min_backoff bounds the back-off of this consumer, too."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        policy = {"ack_wait_ms": "10s", "min_backoff_ms": "5s", "jitter": 0}
        await broker.admin("subscriptions.create", **NAMES, policy=policy)
        producer = await broker.producer("x")
        await producer.send(b"hard")
        async with broker.consumer("x", "s", ack_wait=timedelta(seconds=2)) as inbox:
            assert await attempts(world, inbox, 0) == [1]
            assert await attempts(world, inbox, 4) == []
            assert await attempts(world, inbox, 1) == [2]
            assert await attempts(world, inbox, 5) == [3]
            assert await attempts(world, inbox, 8) == [4]


async def test_policy_survives_a_crash_and_applies_to_nacks(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: a nack uses the back-off of the subscription."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES)
            policy = {"min_backoff_ms": "1h", "jitter": 0}
            await broker.admin("subscriptions.update", **NAMES, policy=policy)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            subscription = await broker.admin("subscriptions.get", **NAMES)
            assert (subscription["min_backoff_ms"], subscription["jitter"]) == (3_600_000, 0)
            assert (subscription["kind"], subscription["max_backoff_ms"]) == ("shared", 0)
            producer = await broker.producer("x")
            await producer.send(b"not now")
            async with broker.consumer("x", "s") as inbox:
                (first,) = await arrived(inbox)
                await first.nack()
                assert await attempts(world, inbox, 3599) == []
                assert await attempts(world, inbox, 1) == [2]


@pytest.mark.parametrize(
    ("noun", "names"),
    [
        ("namespaces", {"namespace": "public/default"}),
        ("topics", {"topic": "x"}),
        ("subscriptions", NAMES),
    ],
)
async def test_invalid_policy_update_is_refused_and_changes_nothing(
    noun: str, names: dict[str, str], mock_clock: trio.testing.MockClock
) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        before = await broker.admin(f"{noun}.get", **names)
        for policy, said in (
            ({"colour": "red"}, "no field 'colour'"),
            ({}, "with at least one change"),
            ("red", "as a map"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                await broker.admin(f"{noun}.update", **names, policy=policy)
        assert await broker.admin(f"{noun}.get", **names) == before
        elsewhere = dict.fromkeys(names, "no/no" if noun == "namespaces" else "no")
        with pytest.raises(NotFound):
            await broker.admin(f"{noun}.update", **elsewhere, policy={"colour": "red"})
        with pytest.raises(NotFound):
            await broker.admin(f"{noun}.get", **elsewhere)


async def test_policies_for_shared_subscriptions_are_refused_for_other_kinds(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q4, Q9, V5: the broker refuses these policies instead of ignoring them."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, kind="exclusive")
        for policy in (
            {"order": "topic"},
            {"on_retry": "skip"},
            {"dispatch": "least_busy"},
            {"priority_ageing_ms": 0},
        ):
            said = f"{next(iter(policy))} is for shared subscriptions; s is exclusive"
            with pytest.raises(InvalidRequest, match=said):
                await broker.admin("subscriptions.update", **NAMES, policy=policy)
            other = {"topic": "x", "subscription": "t", "kind": "failover", "policy": policy}
            with pytest.raises(InvalidRequest, match="t is failover"):
                await broker.admin("subscriptions.create", **other)
        nothing = {"order": "any", "priority_ageing_ms": None, "max_deliveries": 3}
        await broker.admin("subscriptions.update", **NAMES, policy=nothing)


async def test_error_for_an_unknown_name_shows_how_to_list_the_names(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t")
        listing = "subscriptions list public/default/t` shows all subscriptions"
        for verb in ("subscriptions.get", "dlq.list", "subscriptions.delete"):
            with pytest.raises(NotFound, match=listing):
                await broker.admin(verb, topic="t", subscription="nosuch")
        with pytest.raises(NotFound, match="`escapement schedule list` shows all schedules"):
            await broker.schedules.get("nosuch")
