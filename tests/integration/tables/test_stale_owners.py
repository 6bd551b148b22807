"""A broker hangs in a statement. Mostly another broker with the same log takes over."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio

import escapement
from escapement.broker.broker import BrokerConfig
from escapement.testing import World
from escapement.testing.clock import VirtualClock
from support.database.outages import Outage
from support.faults.hanging_calls import HangingCalls, nth
from support.faults.stale_owner import LEASE_S, Owner
from support.storage.commit_pipelines import FaultyEngine
from support.tables.shops import Shop, comment, taken

MockClock = trio.testing.MockClock

IMPATIENT: Final = escapement.Settings(heartbeat_s=None, close_timeout_s=0)
ACK_WAIT_S: Final = 60


@dataclass
class Succession:
    """A broker that hangs, and the broker that takes over."""

    shop: Shop
    topic: str
    stale: Owner
    successor: World
    calls: HangingCalls
    log: Outage

    def reconnect(self) -> None:
        """Let the first broker open its connections again, so that they may hang."""
        for database in self.stale.server.services.tables.databases.values():
            for kept in (
                database._connections.polls,
                database._connections.claims,
                database._connections.writes,
            ):
                kept.close()
                kept._engine = FaultyEngine(self.shop.engine, self.calls.before)

    async def take_over(self) -> None:
        """Cut the first broker off from its log until its lease ends, and start the second."""
        assert self.calls.is_hanging
        self.log.unreachable()
        await self.stale.clock.advance(seconds=LEASE_S + 1)
        await self.successor.restart()
        await self.successor.clock.advance(seconds=2)

    def rows(self) -> tuple[tuple[object, ...], ...]:
        return self.shop.rows("id, epoch, time_next, time_acked")


@asynccontextmanager
async def succession(shop: Shop, **directives: object) -> AsyncIterator[Succession]:
    """Serve the table mails by a broker whose calls may hang; ``take_over`` starts another."""
    topic = shop.create(
        comment=comment(**{"poller_interval": 1, "ack_wait": ACK_WAIT_S} | directives)
    )
    log, calls, clock = Outage(), HangingCalls(), VirtualClock()
    config = BrokerConfig(seed=0)
    config = replace(
        config,
        tables=(shop.address,),
        limits=replace(
            config.limits,
            lease_ms=LEASE_S * 1000,
            checkpoint_interval_s=1e9,
            idle_timeout_s=1e9,
            handshake_timeout_s=1e9,
        ),
    )
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        async with trio.open_nursery() as nursery:
            stale = Owner(nursery, clock, log.engine, Path(first), config, calls)
            successor = World(nursery, clock, log.database, Path(second), config, calls)
            await stale.restart()
            one = Succession(shop, topic, stale, successor, calls, log)
            one.reconnect()
            try:
                await clock.advance(seconds=2)
                yield one
            finally:
                calls.release()
            nursery.cancel_scope.cancel()


async def test_row_that_a_hanging_broker_acknowledges_is_sent_by_its_successor(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: its transaction is ended, although the successor has nothing to write."""
    async with (
        succession(shop, ack_wait=5) as one,
        one.stale.connect(settings=IMPATIENT) as client,
        client.consumer(one.topic, "table") as inbox,
    ):
        id = shop.insert()
        (message,) = await taken(one.stale, inbox, seconds=2)
        one.calls.hang_at(nth(1, "commit"))
        await inbox.ack([message])
        await one.stale.clock.advance(ms=100)
        await one.take_over()
        async with (
            one.successor.connect() as other,
            other.consumer(one.topic, "table") as second,
        ):
            (again,) = await taken(one.successor, second, seconds=5)
            assert again.row["id"] == id
            before = one.rows()
            one.calls.release()
            assert one.rows() == before
            assert await second.ack([again], durable=True) == 1


async def test_table_that_a_hanging_broker_has_locked_is_free_for_its_successor(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V14: it hangs while it drops a partition, which also stops the application."""
    async with succession(shop, purge_after=1) as one:
        shop.run("ALTER TABLE mails DROP PRIMARY KEY, ADD PRIMARY KEY (id, tenant_id)")
        one.calls.hang_at(nth(1, "UNLOCK TABLES"))
        shop.run(
            "ALTER TABLE mails PARTITION BY RANGE (tenant_id)"
            " (PARTITION old VALUES LESS THAN (1), PARTITION rest VALUES LESS THAN (MAXVALUE))"
        )
        shop.insert(tenant_id=0, time_acked=1, time_next=None)
        id = shop.insert(tenant_id=1)
        await one.stale.clock.advance(seconds=31)
        await one.take_over()
        async with (
            one.successor.connect() as client,
            client.consumer(one.topic, "table") as inbox,
        ):
            (message,) = await taken(one.successor, inbox, seconds=5)
            assert message.row["id"] == id
            assert await inbox.ack([message], durable=True) == 1


async def test_broker_that_hangs_while_it_connects_claims_nothing(
    shop: Shop, mock_clock: MockClock
) -> None:
    """Invariant 8: it had asked for its lease before, and takes the named lock after."""
    async with (
        succession(shop) as one,
        one.stale.connect(settings=IMPATIENT) as client,
        client.consumer(one.topic, "table"),
    ):
        one.reconnect()
        one.calls.hang_at(nth(1, "SELECT GET_LOCK"))
        shop.insert()
        await one.stale.clock.advance(seconds=2)
        await one.take_over()
        before = one.rows()
        one.calls.release()
        assert one.rows() == before


async def test_claimed_row_is_sent_although_the_claim_before_has_failed(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: if the row waited, SQL could acknowledge it before it is sent."""
    other = shop.create("letters", comment(poller_interval=1))
    async with (
        succession(shop) as one,
        one.stale.connect(settings=IMPATIENT) as client,
        client.consumer(other, "table"),
        client.consumer(one.topic, "table") as inbox,
    ):
        clock = one.stale.clock
        await clock.advance(seconds=2)
        due_ms = clock.now_ms() + 5_000
        shop.insert("letters", time_next=(due_ms - 100) * 1_000_000)
        id = shop.insert(time_next=due_ms * 1_000_000)
        one.calls.hang_at(nth(1, "commit"))
        await clock.advance(ms=4_950)
        assert one.calls.is_hanging
        await clock.advance(ms=70)  # the second claim has begun, and waits
        (database,) = one.stale.server.services.tables.databases.values()
        connection = database._connections.claims._connection
        assert connection is not None
        shop.run(f"KILL CONNECTION {connection.id}")
        one.calls.release()
        (message,) = await taken(one.stale, inbox, ms=20)
        assert message.row["id"] == id
