"""A whole broker while its database is read-only or unreachable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.membership import RENEWALS_PER_LEASE
from escapement.broker.subscription.delivery.consumer import Outlet
from escapement.client.settings import Settings
from escapement.errors import EscapementError, StorageReadOnly, StorageUnavailable
from escapement.position import LATEST
from escapement.storage.catalog.catalog import Kind
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.faults.held_calls import Held
from support.messages.received_messages import values

LEASE_S: Final = 10
PATIENT: Final = BrokerConfig(ack_wait_ms=86_400_000, seed=0)


class Nowhere(Outlet):
    """The outlet of a consumer that never receives anything."""


@asynccontextmanager
async def with_a_lease(outage: Outage, **options: Any) -> AsyncIterator[World]:
    """Start a world whose broker must renew its lease, as in production."""
    async with testing.start(config=PATIENT, engine=outage.engine, **options) as world:
        limits = replace(world.config.limits, lease_ms=1000 * LEASE_S)
        world.config = replace(world.config, limits=limits)
        await world.stop()
        await world.restart()
        yield world


def connect(world: World) -> AbstractAsyncContextManager[escapement.Broker]:
    """Connect a client that closes without waiting, as the clock stands still if a test fails."""
    return world.connect(settings=Settings(heartbeat_s=None, close_timeout_s=0.0))


async def one_each_second(broker: escapement.Broker, count: int) -> None:
    """Publish ``count`` messages, of which one becomes due each second."""
    producer = await broker.producer("t")
    delays = [timedelta(seconds=second) for second in range(1, count + 1)]
    await producer.send_many([b"%d" % second for second in range(1, count + 1)], delay=delays)


async def a_while(world: World, seconds: int) -> None:
    """Advance the clock in steps of a second, so that probes with a growing back-off run."""
    for _ in range(seconds):
        await world.clock.advance(seconds=1)


class Asked:
    """A call to the broker in a task; its answer or error may come later."""

    def __init__(self, nursery: trio.Nursery, call: Callable[..., Awaitable[Any]], *args: Any):
        self.answer: Any = None
        self.error: EscapementError | None = None

        async def ask() -> None:
            try:
                self.answer = await call(*args)
            except EscapementError as error:
                self.error = error

        nursery.start_soon(ask)


async def test_read_only_database_stops_dispatch_until_it_accepts_writes_again(
    mock_clock: MockClock,
) -> None:
    """Q8: publishes and acks get retryable errors. Afterwards all continues by itself."""
    outage = Outage()
    async with (
        testing.start(config=PATIENT, engine=outage.engine) as world,
        trio.open_nursery() as nursery,
        connect(world) as broker,
        broker.consumer("t", "s") as inbox,
    ):
        await one_each_second(broker, 20)
        hasty = await broker.producer("t", send_timeout=(500, "ms"))
        patient = await broker.producer("t")
        await world.clock.advance(seconds=1)
        (first,) = await arrived(inbox)
        outage.read_only()
        refused = Asked(nursery, hasty.send, b"refused")
        await world.clock.settle()
        waiting = Asked(nursery, patient.send, b"waits")
        ack = Asked(nursery, partial(inbox.ack, first.id, durable=True))
        for _ in range(10):
            await world.clock.advance(seconds=1)
            assert await arrived(inbox) == []
        assert isinstance(refused.error, StorageReadOnly)
        assert refused.error.retryable
        assert (waiting.answer, waiting.error, ack.answer, ack.error) == (None,) * 4
        assert (await broker.admin("broker.stats"))["database"] == "read_only"
        outage.over()
        await a_while(world, 5)
        assert ack.answer == 1
        assert waiting.answer is not None
        due = [b"%d" % second for second in range(2, 17)]
        assert sorted(await values(inbox)) == sorted([*due, b"waits"])
        await hasty.send(b"again")
        assert await values(inbox) == [b"again"]
        await a_while(world, 4)
        assert await values(inbox) == [b"17", b"18", b"19", b"20"]


async def test_read_only_database_stops_dispatch_even_without_publishes_or_acks(
    mock_clock: MockClock,
) -> None:
    """Q8: the renewal of the lease detects it, long before the lease ends."""
    outage = Outage()
    async with (
        with_a_lease(outage) as world,
        connect(world) as broker,
        broker.consumer("t", "s") as inbox,
    ):
        await one_each_second(broker, 40)
        await world.clock.advance(seconds=1)
        assert len(await arrived(inbox)) == 1
        outage.read_only()
        got = []
        stopped_at_s = 0
        for second in range(2, LEASE_S):
            await world.clock.advance(seconds=1)
            now = await arrived(inbox)
            assert not (now and stopped_at_s)
            got += now
            stats = await broker.admin("broker.stats")
            if stats["database"] == "read_only" and not stopped_at_s:
                assert stats["lease_held"], "the lease ended before dispatch stopped"
                stopped_at_s = second
        assert 0 < stopped_at_s <= 2 + LEASE_S / RENEWALS_PER_LEASE
        outage.over()
        await a_while(world, 5)
        stats = await broker.admin("broker.stats")
        assert (stats["database"], stats["lease_held"]) == ("up", True)
        got += await arrived(inbox)
        assert [message.payload for message in got] == [b"%d" % n for n in range(2, LEASE_S + 5)]


async def test_acks_are_refused_at_once_while_the_database_is_read_only(
    mock_clock: MockClock,
) -> None:
    """Q8: the consumer gets a retryable error, and nothing is acknowledged."""
    outage = Outage()
    async with testing.start(config=PATIENT, engine=outage.engine) as world:
        async with connect(world) as broker:
            producer = await broker.producer("t", send_timeout=(1, "ms"))
            await broker.admin("subscriptions.create", topic="t", subscription="s")
            await producer.send(b"m")
            outage.read_only()
            async with trio.open_nursery() as nursery:
                Asked(nursery, producer.send, b"refused")
                await world.clock.advance(seconds=1)
            consuming = world.server.consuming
            handle = await consuming.subscribe(
                "t", "s", kind="shared", position=LATEST, ack_wait_ms=0, consumer_name="",
                wire_id=1, outlet=Nowhere(),
            )  # fmt: skip
            for wanted in (None, lambda count: None):
                with pytest.raises(StorageReadOnly) as refused:
                    consuming.acknowledge(handle, np.array([0]), wanted)
                assert refused.value.retryable
            outage.over()
            await a_while(world, 5)
            async with broker.consumer("t", "s") as inbox:
                assert await values(inbox) == [b"m"]


async def test_due_messages_are_delivered_until_the_lease_ends_and_then_after_the_outage(
    mock_clock: MockClock,
) -> None:
    """Q8: an unreachable database. Nothing is confirmed meanwhile or delivered twice."""
    outage = Outage()
    async with (
        with_a_lease(outage) as world,
        trio.open_nursery() as nursery,
        connect(world) as broker,
        broker.consumer("t", "s") as inbox,
    ):
        await one_each_second(broker, 40)
        hasty = await broker.producer("t", send_timeout=(500, "ms"))
        outage.unreachable()
        refused = Asked(nursery, hasty.send, b"refused")
        got: list[bytes] = []
        for second in range(1, 31):
            await world.clock.advance(seconds=1)
            now = await values(inbox)
            got += now
            # The last renewal was up to a third of the lease before the outage.
            if second <= LEASE_S * 2 // 3 - 1:
                assert now == [b"%d" % second]
            if second > LEASE_S:
                assert now == []
        flushed = Asked(nursery, inbox.flush_acks)
        durable = Asked(nursery, partial(inbox.ack, 0, durable=True))
        await a_while(world, 5)
        assert isinstance(refused.error, StorageUnavailable)
        assert refused.error.retryable
        assert durable.answer is None
        assert (await broker.admin("broker.stats"))["waiting_acks"] == len(got) + 1
        outage.over()
        for _ in range(15):
            await world.clock.advance(seconds=1)
            got += await values(inbox)
        assert got == [b"%d" % second for second in range(1, 41)]
        assert durable.answer == 0, "message 0 was acknowledged before"
        assert flushed.error is None
        await inbox.flush_acks()


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_subscription_that_could_not_read_the_log_reads_it_after_the_outage(
    mock_clock: MockClock, kind: Kind
) -> None:
    """Invariant 4, Q8: nothing is published or acknowledged, so no lane notices the outage."""
    outage = Outage()
    async with testing.start(config=PATIENT, engine=outage.engine) as world:
        async with connect(world) as broker:
            await broker.admin("subscriptions.create", topic="t", subscription="s", kind=kind)
            await (await broker.producer("t")).send(b"m")
            outage.unreachable()
            async with broker.consumer("t", "s", kind=kind) as inbox:
                await a_while(world, 5)
                assert await arrived(inbox) == []
                outage.over()
                await a_while(world, 2)
                assert await values(inbox) == [b"m"]
                await inbox.flush_acks()


async def test_a_lease_that_ran_out_during_a_recovery_is_renewed_and_the_recovery_goes_on(
    mock_clock: MockClock,
) -> None:
    """Q8, P6: while recovery reads the log, the database is unreachable for longer than a lease."""
    outage, held = Outage(), Held()
    async with with_a_lease(outage, run=held) as world:
        async with connect(world) as broker:
            await broker.admin("subscriptions.create", topic="t", subscription="s")
            await (await broker.producer("t")).send(b"m")
        await world.crash()
        async with trio.open_nursery() as nursery:
            with held.hold("survey"):
                nursery.start_soon(world.restart)
                await held.reached()
                outage.unreachable()
                await a_while(world, LEASE_S + 1)
                outage.over()
                await a_while(world, LEASE_S)
        async with connect(world) as broker, broker.consumer("t", "s") as inbox:
            assert await values(inbox) == [b"m"]


@pytest.mark.parametrize("bound", ["unwritten_acks", "unwritten_ack_items"])
async def test_repeated_acks_of_one_message_reach_the_bound_during_an_outage(
    mock_clock: MockClock, bound: str
) -> None:
    """Invariant 9: each waits for the commit of the first one, and takes memory until then."""
    outage = Outage()
    config = replace(PATIENT, limits=replace(BrokerLimits(), **{bound: 10}))
    async with (
        testing.start(config=config, engine=outage.engine) as world,
        connect(world) as broker,
        broker.consumer("t", "s") as inbox,
    ):
        await one_each_second(broker, 1)
        await world.clock.advance(seconds=1)
        outage.unreachable()
        for _ in range(30):
            await inbox.ack(0)
            await world.clock.advance(ms=10)  # the client sends each ack by itself
        assert (await broker.admin("broker.stats"))["waiting_acks"] == 20
        outage.over()
        await a_while(world, 15)
        await inbox.flush_acks()
        assert (await broker.admin("broker.stats"))["waiting_acks"] == 0


@pytest.mark.parametrize("bound", ["unwritten_acks", "unwritten_ack_items"])
async def test_dispatch_stops_when_unwritten_acks_reach_their_bound_during_an_outage(
    mock_clock: MockClock, bound: str
) -> None:
    """Q8, invariant 9: the broker reaches a bound on unwritten acks before its lease ends."""
    outage = Outage()
    config = replace(PATIENT, limits=replace(BrokerLimits(), **{bound: 10}))
    async with (
        testing.start(config=config, engine=outage.engine) as world,
        connect(world) as broker,
        broker.consumer("t", "s", permits=2) as inbox,
    ):
        await one_each_second(broker, 60)
        outage.unreachable()
        got: list[bytes] = []
        for _ in range(30):
            await world.clock.advance(seconds=1)
            got += await values(inbox)
            await world.clock.advance(ms=10)  # the client batches acks for a moment
        assert len(got) == 10
        assert (await broker.admin("broker.stats"))["waiting_acks"] == 10
        # Beyond twice the bound, acks of other consumers get a retryable error.
        for offset in range(10, 20):
            await inbox.ack(offset)
            await world.clock.advance(ms=10)  # the client sends each ack by itself
        async with broker.consumer("t", "s", permits=1) as other, trio.open_nursery() as nursery:
            one_more = Asked(nursery, partial(other.ack, 50, durable=True))
            await a_while(world, 2)
            assert (await broker.admin("broker.stats"))["waiting_acks"] == 20
            assert one_more.answer is None
            outage.over()
            await a_while(world, 15)
            assert one_more.answer == 1
        while now := await values(inbox):
            got += now
        await a_while(world, 20)
        while now := await values(inbox):
            got += now
        assert sorted(map(int, got)) == [*range(1, 11), *range(21, 51), *range(52, 61)]
