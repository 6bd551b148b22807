"""Several brokers of one process, under one membership."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pytest
import trio
import trio.testing

from escapement.broker.broker import Broker
from escapement.broker.config import BrokerConfig
from escapement.broker.lease_keeper import LeaseKeeper
from escapement.broker.limits import BrokerLimits
from escapement.broker.membership import MARGIN_PARTS, RENEWALS_PER_LEASE, Membership
from escapement.broker.runners import Runners
from escapement.broker.shared_parts import SharedParts
from escapement.errors import LeaseHeld, LeaseLost
from escapement.storage import lease, schema
from escapement.storage.blocking import inline
from escapement.storage.bundles import set_bundle_count
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Engine
from escapement.storage.lease import Identity
from escapement.storage.ownership import look_at_all
from escapement.testing.clock import VirtualClock
from support.database.outages import Outage
from support.faults.held_calls import Held

BUNDLES: Final = 3
LEASE_MS: Final = 10_000
CONFIG: Final = BrokerConfig(seed=0, limits=BrokerLimits(lease_ms=LEASE_MS))
T = TypeVar("T")
NODE, OTHER = Identity("node", "node"), Identity("other", "other")


class Node:
    """A process with a broker for each bundle."""

    def __init__(self, engine: Engine, data: Path) -> None:
        self.clock = VirtualClock(1_000_000)
        self.engine = engine
        self.membership = Membership(engine, NODE, self.clock, inline, LEASE_MS, "node:7650")
        self.brokers = [
            Broker(
                engine,
                index_directory(data, bundle_id),
                NODE,
                self.clock,
                Runners.all_by(inline),
                CONFIG,
                bundle_id,
                SharedParts(membership=self.membership),
            )
            for bundle_id in range(BUNDLES)
        ]
        self.ends: dict[int, BaseException | None] = {}

    async def _run(self, bundle_id: int, task_status: trio.TaskStatus[None]) -> None:
        self.ends[bundle_id] = None
        try:
            await self.brokers[bundle_id].run(task_status)
        except LeaseLost as error:
            self.ends[bundle_id] = error

    @property
    def held(self) -> list[bool]:
        return [broker.holds_lease() for broker in self.brokers]

    async def start(self, nursery: trio.Nursery) -> None:
        self.membership.register()
        nursery.start_soon(self.membership.run)
        for bundle_id in range(BUNDLES):
            await nursery.start(partial(self._run, bundle_id))


@pytest.fixture
def outage(engine: Engine) -> Outage:
    schema.migrate(engine)
    set_bundle_count(engine, BUNDLES)
    return Outage(engine)


@asynccontextmanager
async def running(outage: Outage, data: Path) -> AsyncIterator[Node]:
    node = Node(outage.engine, data)
    async with trio.open_nursery() as nursery:
        await node.start(nursery)
        yield node
        nursery.cancel_scope.cancel()
    node.membership.close()


async def test_only_the_broker_whose_bundle_was_taken_ends(
    autojump_clock: trio.testing.MockClock, outage: Outage, tmp_path: Path
) -> None:
    """Invariant 8: the others go on. No broker delivers between the expiry and the renewal."""
    async with running(outage, tmp_path) as node:
        await trio.sleep(LEASE_MS / 1000 * 2)
        assert node.held == [True] * BUNDLES
        outage.unrenewed()
        await trio.sleep(LEASE_MS / 1000 + 1)
        assert node.held == [False] * BUNDLES
        with closing(outage.database.connect()) as connection:
            connection.execute("UPDATE brokers SET expires_at_ms = 0")  # by the database's clock
        taken = lease.acquire(outage.database, OTHER, 3_600_000, node.clock, 1)
        outage.over()
        await node.brokers[1].stopped.wait()
        assert node.held == [True, False, True]
        assert "broker 'other' has it with epoch 2" in str(node.ends[1])
        assert taken.delivered_until_ms(node.clock.now_ms()) == node.clock.now_ms()
        for bundle_id in (0, 2):
            node.brokers[bundle_id].stop()
            await node.brokers[bundle_id].stopped.wait()
        assert node.ends[0] is node.ends[2] is None
        with closing(outage.database.connect()) as connection:
            _, bundles = look_at_all(outage.database, connection)
        assert [bundles[n].free for n in range(BUNDLES)] == [True, False, True]


async def test_late_renewal_wakes_a_broker_that_started_meanwhile(
    autojump_clock: trio.testing.MockClock, outage: Outage
) -> None:
    """Invariant 4: the lease expired while the renewal waited, so the broker delivers nothing."""
    held, told, clock = Held(), list[int](), VirtualClock(1_000_000)
    membership = Membership(outage.engine, NODE, clock, held, LEASE_MS)

    def watch(bundle_id: int) -> None:
        LeaseKeeper(
            membership,
            membership.take(bundle_id),
            partial(told.append, bundle_id),
            lambda error: None,
            lambda: 0,
        )

    membership.register()
    watch(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(membership.run)
        with held.hold("Membership._renew"):
            await held.reached()
            watch(1)
            await trio.sleep(LEASE_MS / 1000)
            assert not membership.held
        await trio.testing.wait_all_tasks_blocked()
        assert membership.held
        assert sorted(told) == [0, 1]
        nursery.cancel_scope.cancel()
    membership.close()


async def test_bundle_is_handed_over_while_the_process_lives(
    autojump_clock: trio.testing.MockClock, outage: Outage, tmp_path: Path
) -> None:
    """It releases one bundle and keeps the others. When it has left, no broker is listed."""
    async with running(outage, tmp_path) as node:
        with pytest.raises(LeaseHeld, match="'node'"):
            lease.acquire(outage.database, OTHER, LEASE_MS, node.clock, 2)
        node.membership.drain()
        await trio.testing.wait_all_tasks_blocked()
        with closing(outage.database.connect()) as connection:
            brokers, _ = look_at_all(outage.database, connection)
            assert brokers["node"].draining
            node.brokers[2].stop()
            await node.brokers[2].stopped.wait()
            taken = lease.acquire(outage.database, OTHER, 3_600_000, node.clock, 2)
            assert (taken.epoch, taken.was_clean) == (2, True)
            assert node.held[:2] == [True, True]
            for bundle_id in (0, 1):
                node.brokers[bundle_id].stop()
                await node.brokers[bundle_id].stopped.wait()
            node.membership.leave()
            brokers, _ = look_at_all(outage.database, connection)
            assert set(brokers) == {"other"}


async def test_deliveries_stop_before_the_database_lets_the_lease_expire(
    autojump_clock: trio.testing.MockClock, outage: Outage
) -> None:
    """The two clocks may run at different speeds, so the owner keeps a margin."""
    clock = VirtualClock(1_000_000)
    membership = Membership(outage.database, NODE, clock, inline, LEASE_MS)
    membership.register()
    assert membership.left_ms == LEASE_MS - LEASE_MS // MARGIN_PARTS
    await trio.sleep((LEASE_MS - LEASE_MS // MARGIN_PARTS) / 1000 - 0.001)
    assert membership.held
    await trio.sleep(0.001)
    assert not membership.held


async def test_renewal_that_began_before_a_take_does_not_end_the_broker(
    autojump_clock: trio.testing.MockClock, outage: Outage
) -> None:
    """Its result has the epoch before, and arrives after the bundle was taken."""
    renewed, arrives = trio.Event(), trio.Event()

    async def late(function: Callable[..., T], /, *arguments: object) -> T:
        result = function(*arguments)
        renewed.set()
        await arrives.wait()
        return result

    clock = VirtualClock(1_000_000)
    membership = Membership(outage.database, NODE, clock, late, LEASE_MS)
    membership.register()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(membership.run)
        await renewed.wait()
        keeper = LeaseKeeper(
            membership, membership.take(0), lambda: None, lambda error: None, lambda: 0
        )
        arrives.set()
        await trio.testing.wait_all_tasks_blocked()
        assert keeper.held
        await trio.sleep(LEASE_MS / 1000)
        assert keeper.held
        nursery.cancel_scope.cancel()
    membership.close()


async def test_renewal_stores_the_messages_per_second_of_all_brokers_since_the_one_before(
    autojump_clock: trio.testing.MockClock, outage: Outage
) -> None:
    """B8: also of a broker that has ended meanwhile."""
    clock, counts = VirtualClock(1_000_000), [0, 0]
    membership = Membership(outage.database, NODE, clock, inline, LEASE_MS)

    async def load_after(seconds: float) -> int:
        await trio.sleep(seconds)
        await trio.testing.wait_all_tasks_blocked()
        with closing(outage.database.connect()) as connection:
            return look_at_all(outage.database, connection)[0]["node"].load_per_s

    membership.register()
    period_s = LEASE_MS / RENEWALS_PER_LEASE / 1000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(membership.run)
        await trio.testing.wait_all_tasks_blocked()
        keepers = [
            LeaseKeeper(
                membership,
                membership.take(bundle_id),
                lambda: None,
                lambda error: None,
                partial(counts.__getitem__, bundle_id),
            )
            for bundle_id in range(2)
        ]
        counts[:] = 500, 1_500
        assert await load_after(period_s) == 600
        counts[0] += 100
        keepers[0].close()
        assert await load_after(period_s) == 30
        counts[1] += 1
        membership.renew_soon()
        assert await load_after(0) == 30
        nursery.cancel_scope.cancel()
    membership.register()
    assert await load_after(0) == 0
    membership.close()


async def test_renewal_warns_of_a_clock_that_differs_from_that_of_a_shared_database(
    autojump_clock: trio.testing.MockClock, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    """B8: otherwise a bundle that moves to another machine would silently be early or late."""
    membership = Membership(outage.database, NODE, VirtualClock(1_000_000), inline, LEASE_MS)
    membership.register()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(membership.run)
        await trio.sleep(LEASE_MS / 1000)
        nursery.cancel_scope.cancel()
    membership.close()
    told = [one for one in caplog.records if getattr(one, "event", "") == "node.clock_differs"]
    # SQLite has the clock of this machine.
    assert len(told) == (1 if outage.database.is_shared else 0)
    assert all("behind that of the database" in one.getMessage() for one in told)
