"""Several nodes on one database that is out of reach for longer than a lease (B8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

import trio

from escapement.broker.config import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.node.balancer import STABLE_MS, home_of
from escapement.broker.node.grace import GRACE_RENEWALS
from escapement.broker.node.node import Node
from escapement.broker.runners import Runners
from escapement.storage.blocking import inline
from escapement.storage.bundles import set_bundle_count
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.lease import Identity
from escapement.storage.ownership import look_at_all
from escapement.storage.schema import migrate
from escapement.testing.clock import START_MS, VirtualClock
from support.database.outages import Outage

BUNDLES: Final = 6
NAMES: Final = ("a", "b", "c")
# The database counts leases by its own clock, for which they are long.
LEASE_MS: Final = 30_000
GRACE_MS: Final = GRACE_RENEWALS * LEASE_MS // 3


class Nodes:
    """Three nodes, each with its own way to the database."""

    def __init__(self, database: Engine, data: Path) -> None:
        self.database = database
        self.clock = VirtualClock(START_MS)
        self.outages = {name: Outage(database) for name in NAMES}
        self.nodes = {
            name: Node(
                self.outages[name].engine,
                data / name,
                Identity(name * 32, name),
                f"{name}:7650",
                self.clock,
                lambda: Runners.all_by(inline),
                BrokerConfig(seed=0, limits=BrokerLimits(lease_ms=LEASE_MS)),
            )
            for name in NAMES
        }

    def owned(self) -> dict[str, list[int]]:
        """Return the bundles that each node serves, by the nodes."""
        return {name: [b.bundle_id for b in node.brokers] for name, node in self.nodes.items()}

    def epochs(self) -> list[int]:
        """Return the epochs of the bundles, which count how often each was taken."""
        with closing(self.database.connect()) as connection:
            _, bundles = look_at_all(self.database, connection)
        return [bundles[bundle_id].epoch for bundle_id in range(BUNDLES)]

    async def break_for(self, ms: int) -> None:
        """Let no node reach the database for some time. The leases expire meanwhile."""
        for outage in self.outages.values():
            outage.unreachable()
        await trio.sleep(ms / 1000)
        with closing(self.database.connect()) as connection:
            connection.execute("UPDATE brokers SET expires_at_ms = 1")


@asynccontextmanager
async def three_nodes(url: str, data: Path) -> AsyncIterator[Nodes]:
    """Run the nodes until each has its share of the bundles."""
    database = open_engine(url, data)
    migrate(database)
    set_bundle_count(database, BUNDLES)
    found = Nodes(database, data)
    async with trio.open_nursery() as nursery:
        for node in found.nodes.values():
            await nursery.start(node.run)
        await trio.sleep(2.5 * STABLE_MS / 1000)
        yield found
        nursery.cancel_scope.cancel()
    database.close()


async def test_every_bundle_stays_with_its_owner_after_an_outage_of_the_database(
    tmp_path: Path, mysql_url: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The first node that is back waits for the others, which are some seconds later."""
    async with three_nodes(mysql_url, tmp_path) as cluster:
        owned, epochs = cluster.owned(), cluster.epochs()
        assert all(owned.values())
        await cluster.break_for(LEASE_MS * 3 // 2)
        for name in NAMES:
            cluster.outages[name].over()
            await trio.sleep(5)
        assert cluster.owned() == owned
        assert cluster.epochs() == epochs
        await trio.sleep(STABLE_MS / 1000 + 5)
        assert cluster.owned() == owned
        assert cluster.epochs() == epochs
        for node in cluster.nodes.values():
            assert all(broker.holds_lease() for broker in node.brokers)


async def test_a_node_that_stays_away_after_an_outage_loses_its_bundles_once(
    tmp_path: Path, mysql_url: str, autojump_clock: trio.testing.MockClock
) -> None:
    """It ends their brokers when it comes back, and does not take them again."""
    async with three_nodes(mysql_url, tmp_path) as cluster:
        owned, epochs = cluster.owned(), cluster.epochs()
        await cluster.break_for(LEASE_MS * 3 // 2)
        for name in NAMES[:2]:
            cluster.outages[name].over()
        await trio.sleep(GRACE_MS / 1000 - 1)
        assert cluster.epochs() == epochs
        await trio.sleep(5)
        moved = cluster.owned()
        for bundle_id in owned["c"]:
            assert bundle_id in moved[str(home_of(bundle_id, ("a" * 32, "b" * 32)))[0]]
        cluster.outages["c"].over()
        await trio.sleep(5)
        assert cluster.owned() == {"a": moved["a"], "b": moved["b"], "c": []}
        taken = [bundle_id in owned["c"] for bundle_id in range(BUNDLES)]
        assert cluster.epochs() == [e + is_c for e, is_c in zip(epochs, taken, strict=True)]
