"""A node: the process that runs a broker for each bundle that it owns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import trio

from escapement.broker.config import BrokerConfig
from escapement.broker.node.node import Node
from escapement.broker.runners import Runners
from escapement.errors import OtherDatabase
from escapement.protocol.commands import Moved
from escapement.storage import lease as leases
from escapement.storage import members
from escapement.storage.blocking import inline
from escapement.storage.bundles import CATALOG
from escapement.storage.engine.open import open_engine
from escapement.storage.lease import Identity
from escapement.testing.clock import START_MS, VirtualClock

HOUR_MS = 3_600_000


async def test_node_whose_bundle_was_taken_stands_by_although_it_is_to_read_the_catalog(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """B8: the read goes through the lanes of a broker that has lost its lease."""
    engine, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    node = Node(
        engine,
        tmp_path,
        Identity("a" * 32, "a:7650"),
        "a:7650",
        clock,
        lambda: Runners.all_by(inline),
        BrokerConfig(seed=0),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        assert [broker.bundle_id for broker in node.brokers] == [0]
        with closing(engine.connect()) as connection:
            # As if the node had hung for longer than a lease.
            connection.execute("UPDATE brokers SET expires_at_ms = 1")
            other = members.register(engine, Identity("b" * 32, "b:7650"), HOUR_MS, clock, "b:7650")
            lease = leases.take(engine, other, clock)
            connection.execute(
                "UPDATE shared_numbers SET value = value + 1 WHERE name = ?", (CATALOG,)
            )
        await clock.advance(seconds=2)
        assert not node.brokers
        assert not node.stopped.is_set()
        assert node.choose({}) == Moved(0, 0, "b:7650", lease.epoch)
        with pytest.raises(OtherDatabase):
            node.choose({"log": b"another"})
        node.stop()
    engine.close()


async def test_bundles_share_the_connections_beside_those_that_commit(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """B8: a node with 16 bundles fits into the 151 connections of a server with its defaults."""
    engine, clock, bundles = open_engine(mysql_url, tmp_path), VirtualClock(START_MS), 16
    config = BrokerConfig(seed=0)
    node = Node(
        engine,
        tmp_path,
        Identity("a" * 32, "a:7650"),
        "a:7650",
        clock,
        lambda: Runners.all_by(inline),
        config,
        bundles=bundles,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        for _ in range(30):
            await clock.advance(seconds=2)
        with closing(engine.connect()) as connection:
            ((count,),) = connection.execute(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE()"
            ).rows
        # The membership, the pool, and the connection that counts.
        assert count == config.limits.commit_lanes * bundles + 3
        node.stop()
    engine.close()
