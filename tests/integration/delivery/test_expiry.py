"""Messages expire a configured time after their delivery time (P10)."""

from __future__ import annotations

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.messages.received_messages import values

CALM = BrokerConfig(seed=0)
NAMES = {"topic": "x", "subscription": "s"}
KINDS = ["shared", "exclusive"]


async def figures(broker: escapement.Broker) -> dict[str, int]:
    """Return the counts of expired, ready, unacknowledged and dead-lettered messages."""
    (row,) = await broker.admin("subscriptions.list", topic="x")
    return {name: row[name] for name in ("expired", "ready", "unacknowledged", "dead_lettered")}


@pytest.mark.parametrize("kind", KINDS)
async def test_expired_messages_are_not_delivered(
    kind: str, mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P10: they count as acknowledged, also after a crash."""
    async with testing.start(config=CALM, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, kind=kind)
            await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1h"})
            producer = await broker.producer("x")
            await producer.send_many([b"old"] * 3)
            await world.clock.advance(minutes=59)
            await producer.send_many([b"new"] * 2)
            await world.clock.advance(minutes=1)
            async with broker.consumer("x", "s", kind=kind) as inbox:
                assert await values(inbox) == [b"new", b"new"]
                await inbox.flush_acks()
            assert await figures(broker) == {
                "expired": 3,
                "ready": 0,
                "unacknowledged": 0,
                "dead_lettered": 0,
            }
            await broker.admin("topics.update", topic="x", policy={"ttl_ms": None})
            await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s", kind=kind) as inbox:
            await world.clock.advance(minutes=1)
            assert await values(inbox) == []


async def test_time_to_live_counts_from_the_delivery_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: a delay longer than the time-to-live does not expire a message."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("namespaces.update", namespace="public/default", policy={"ttl_ms": "5m"})
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            await producer.send(b"late", delay="30d")
            await producer.send(b"later", delay="31d")
            await world.clock.advance(days=30)
            assert await values(inbox) == [b"late"]
            await world.clock.advance(days=1)
            assert await values(inbox) == [b"later"]
            assert (await figures(broker))["expired"] == 0


async def test_in_flight_messages_do_not_expire_but_nacked_ones_do(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1m"})
        async with broker.consumer("x", "s", ack_wait="1h") as inbox:
            await producer.send_many([b"kept", b"back"])
            kept, back = await arrived(inbox)
            await world.clock.advance(minutes=10)
            assert (await figures(broker))["expired"] == 0
            await back.nack(delay="1s")
            await world.clock.advance(seconds=1)
            assert await arrived(inbox) == []
            assert (await figures(broker))["expired"] == 1
            assert await inbox.ack(kept.id, durable=True) == 1


async def test_message_waiting_for_a_retry_expires_on_time_and_releases_its_key(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10, Q9: even if the retry is due much later."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1m"})
        await broker.admin("subscriptions.create", **NAMES, policy={"order": "key"})
        async with broker.consumer("x", "s") as inbox:
            await producer.send(b"failing", key="k")
            (failing,) = await arrived(inbox)
            await failing.nack(delay="10m")
            await world.clock.advance(seconds=50)
            await producer.send(b"behind", key="k")
            assert await arrived(inbox) == []
            await world.clock.advance(seconds=12)
            assert [message.value for message in await arrived(inbox)] == [b"behind"]
            assert (await figures(broker))["expired"] == 1


@pytest.mark.parametrize("restart", [False, True], ids=["at once", "after a start"])
@pytest.mark.parametrize("kind", KINDS)
async def test_new_time_to_live_applies_to_messages_waiting_for_a_retry(
    kind: str, restart: bool, mock_clock: trio.testing.MockClock
) -> None:
    """P10, Q9: there was none at the nack. The expired message releases its key."""
    policy = {"order": "key"} if kind == "shared" else {}
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, kind=kind, policy=policy)
            producer = await broker.producer("x")
            await producer.send(b"failing", key="k")
            async with broker.consumer("x", "s", kind=kind) as inbox:
                (failing,) = await arrived(inbox)
                await failing.nack(delay="1h")
                await world.clock.advance(seconds=10)
            await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1m"})
            await world.clock.settle()
            if restart:
                await world.crash()
        if restart:
            await world.restart()
        async with world.connect() as broker:
            producer = await broker.producer("x")
            await world.clock.advance(seconds=48)
            assert (await figures(broker))["unacknowledged"] == 1
            await producer.send(b"behind", key="k")
            await world.clock.advance(seconds=4)
            assert (await figures(broker))["expired"] == 1
            async with broker.consumer("x", "s", kind=kind) as inbox:
                assert await values(inbox) == [b"behind"]


@pytest.mark.parametrize("kind", KINDS)
async def test_backlog_without_a_consumer_expires_on_time(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: ready messages, and those without room in ready, without any traffic (invariant 4)."""
    config = BrokerConfig(seed=0, limits=BrokerLimits(ready_messages=100))
    async with testing.start(config=config) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, kind=kind)
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1h"})
        producer = await broker.producer("x")
        for minute in range(10):
            await producer.send_many([b"%d" % minute] * 100)
            await world.clock.advance(minutes=1)
        assert (await figures(broker))["expired"] == 0
        await world.clock.advance(minutes=50, seconds=2)
        assert (await figures(broker))["expired"] == 100
        await world.clock.advance(minutes=5)
        assert (await figures(broker))["expired"] == 600
        await world.clock.advance(minutes=5)
        assert await figures(broker) == {
            "expired": 1000,
            "ready": 0,
            "unacknowledged": 0,
            "dead_lettered": 0,
        }
        async with broker.consumer("x", "s", kind=kind) as inbox:
            assert await values(inbox) == []
            await producer.send(b"fresh")
            assert await values(inbox) == [b"fresh"]


@pytest.mark.parametrize("kind", KINDS)
async def test_shorter_time_to_live_applies_at_once_and_after_a_restart(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """P10: after the restart, also to a topic without any traffic."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, kind=kind)
            producer = await broker.producer("x")
            await producer.send_many([b"old"] * 10)
            await world.clock.advance(hours=1)
            await producer.send_many([b"new"] * 10)
            assert (await figures(broker))["expired"] == 0
            await broker.admin("topics.update", topic="x", policy={"ttl_ms": "30m"})
            await world.clock.settle()
            assert (await figures(broker))["expired"] == 10
            await world.checkpoint()
            await world.crash()
        await world.clock.advance(hours=1)
        await world.restart()
        await world.clock.advance(seconds=2)
        async with world.connect() as broker:
            assert (await figures(broker))["unacknowledged"] == 0


async def test_exclusive_subscription_expires_messages_anywhere_in_the_log(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: the log is not sorted by delivery time; a rescheduled message has its new one."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, kind="exclusive")
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1h"})
        producer = await broker.producer("x")
        for delay in ("10h", "0s", "5h", "0s", "20h", "2h"):
            await producer.send_many([delay.encode()] * 2, delay=delay)
        expired = []
        for _ in range(23):
            await world.clock.advance(minutes=59)
            await world.clock.advance(minutes=1, seconds=2)
            expired.append((await figures(broker))["expired"])
            if len(expired) == 6:
                await broker.reschedule([8], topic="x", delay="1h")
        # After 1 and 3 hours; then after 6, 8 (the rescheduled message), 11 and 21.
        assert expired == [4, 4, 6, 6, 6, 8, 8, 9, 9, 9, 11] + [11] * 9 + [12] * 3
        assert (await figures(broker))["unacknowledged"] == 0


async def test_paused_exclusive_subscription_expires_waiting_and_returned_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: messages return by a nack, or when the consumer leaves."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin(
            "subscriptions.create", **NAMES, kind="exclusive", policy={"max_in_flight": 2}
        )
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1h"})
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", kind="exclusive", ack_wait="90d") as inbox:
            await producer.send_many([b"one", b"two"])
            one, two = await arrived(inbox)
            await broker.pause("x")
            await producer.send_many([b"waits"] * 20)
            await world.clock.advance(hours=1, seconds=2)
            assert (await figures(broker))["expired"] == 20
            await one.nack("10m")
            await world.clock.advance(seconds=2)
            assert (await figures(broker))["expired"] == 21
            assert two.value == b"two"
        await world.clock.advance(seconds=2)
        found = await figures(broker)
        assert (found["expired"], found["unacknowledged"]) == (22, 0)


async def test_each_subscription_expires_its_own_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: also a subscription that begins with the first message after it has expired."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        producer = await broker.producer("x")
        await producer.send(b"one")
        async with broker.consumer("x", "quick") as quick:
            await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1m"})
            async with broker.consumer("x", "done", position="earliest") as done:
                await world.clock.advance(seconds=1)
                assert await values(done) == [b"one"]
            await world.clock.advance(minutes=2)
            async with broker.consumer("x", "new", position="earliest") as new:
                await world.clock.advance(seconds=2)
                assert await values(new) + await values(quick) == []
            rows = await broker.admin("subscriptions.list", topic="x")
            assert {row["subscription"]: row["expired"] for row in rows} == {
                "s": 1,
                "quick": 0,
                "done": 0,
                "new": 1,
            }


@pytest.mark.parametrize("kind", KINDS)
async def test_expired_messages_are_dead_lettered_if_configured(
    kind: str, mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """P10: once each, with the reason."""
    async with testing.start(config=CALM, engine=engine) as world, world.connect() as broker:
        policy = {"expired_to_dead_letter": "yes"}
        await broker.admin("subscriptions.create", **NAMES, kind=kind, policy=policy)
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1m"})
        producer = await broker.producer("x")
        await producer.send_many([b"%d" % number for number in range(5)])
        await world.clock.advance(minutes=2)
        await world.clock.advance(seconds=5)
        rows = await broker.admin("dlq.list", **NAMES, count=10)
        assert {row["reason"] for row in rows} == {"expired"}
        assert len(rows) == 5
        found = await figures(broker)
        assert (found["expired"], found["dead_lettered"]) == (5, 5)
        assert found["unacknowledged"] == 0


async def test_expiry_goes_on_during_a_pause(mock_clock: trio.testing.MockClock) -> None:
    """P10."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1m"})
        async with broker.consumer("x", "s") as inbox:
            await broker.pause("x")
            await producer.send(b"one")
            await world.clock.advance(minutes=2)
            await broker.resume("x")
            assert await values(inbox) == []
            assert (await figures(broker))["expired"] == 1


@pytest.mark.parametrize("policy", [{"order": "key"}, {"order": "topic"}, {}])
async def test_expired_messages_hold_up_no_key_and_no_range(
    policy: dict[str, str], mock_clock: trio.testing.MockClock
) -> None:
    """P10: also messages in a key range that no consumer asks for."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy=policy)
        await broker.admin("topics.update", topic="x", policy={"ttl_ms": "1m"})
        producer = await broker.producer("x")
        ranged = {} if policy else {"key_range": (0, 1)}
        async with broker.consumer("x", "s", ack_wait="1h", **ranged) as inbox:
            for _ in range(5):
                await producer.send(b"old", key="k")
            await world.clock.settle()
            held = await arrived(inbox)
            await world.clock.advance(minutes=2)
            await inbox.ack([message.id for message in held], durable=True)
            await producer.send(b"new", key="k")
            await world.clock.advance(seconds=2)
            found = await figures(broker)
            assert found["expired"] == 5 - len(held)
            assert found["unacknowledged"] == 1
            assert await values(inbox) == ([b"new"] if policy else [])
