"""A node: the process that runs a broker for each bundle that it owns."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from escapement.access.token import Token
from escapement.broker.membership import RENEWALS_PER_LEASE
from escapement.broker.node.node import Node
from escapement.broker.runners import Runners
from escapement.errors import OtherDatabase, StorageUnavailable, Unauthenticated
from escapement.names import NamespaceName
from escapement.protocol.commands import Moved
from escapement.storage import lease as leases
from escapement.storage import members
from escapement.storage.blocking import inline
from escapement.storage.bundles import CATALOG, set_bundle_count
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.open import open_engine
from escapement.storage.lease import Identity
from escapement.testing.clock import START_MS, VirtualClock
from escapement.testing.world import arrived
from support.bundle_topics import topic_of_each_bundle
from support.faults.hanging_calls import HangingCalls, nth
from support.storage.cluster import connected
from support.storage.commit_pipelines import FaultyEngine, Once
from support.storage.running_nodes import Running, made
from support.storage.virtual_node import virtual_node

HOUR_MS = 3_600_000
# The first words of the query by which a node looks at all nodes and bundles.
LOOK = "SELECT 0, owner_id"


async def test_node_whose_bundle_was_taken_stands_by_although_it_is_to_read_the_catalog(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """B8: the broker reads the catalog before a renewal tells it that it has lost its lease."""
    engine, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    node = virtual_node(engine, tmp_path, clock)
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
        await clock.advance(ms=node.config.limits.lease_ms / RENEWALS_PER_LEASE)
        await clock.advance(seconds=2)
        assert not node.brokers
        assert not node.stopped.is_set()
        assert node.reception.choose({}) == Moved(0, 0, "b:7650", lease.epoch)
        with pytest.raises(OtherDatabase):
            node.reception.choose({"log": b"another"})
        node.stop()
    engine.close()


async def test_bundles_share_the_connections_beside_those_that_commit(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """B8: a node with 16 bundles fits into the 151 connections of a server with its defaults."""
    engine, clock, bundles = open_engine(mysql_url, tmp_path), VirtualClock(START_MS), 16
    node = virtual_node(engine, tmp_path, clock, bundles=bundles)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        for _ in range(30):
            await clock.advance(seconds=2)
        with closing(engine.connect()) as connection:
            ((count,),) = connection.execute(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE()"
            ).rows
        # One of each bundle, the membership, the pool, and the connection that counts. Those of
        # shared transactions do not exist yet.
        assert count == bundles + 3
        node.stop()
    engine.close()


async def test_drained_bundle_whose_release_fails_gets_its_new_owner(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """B8: the node lives on, so the lease does not expire. No message is lost."""
    failures = 0

    def fails(step: str) -> None:
        nonlocal failures
        if step.startswith("UPDATE leases SET expires_at_ms = 0") and failures < 2:
            failures += 1  # of the broker, and of the node after it
            raise StorageUnavailable("out of reach")

    engine, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    runners = Runners.all_by(inline)
    first = made(FaultyEngine(engine, fails), tmp_path / "a", "a", clock, 1, runners)
    second = made(engine, tmp_path / "b", "b", clock, 1, runners)
    async with trio.open_nursery() as nursery:
        running = Running(nursery, clock)
        await running.start("a:7650", first)
        await running.start("b:7650", second)
        assert [len(node.brokers) for node in (first, second)] == [1, 0]
        async with connected(running) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            await (await client.producer("t")).send(b"x")
            async with client.consumer("t", "s") as inbox:
                assert (await inbox.receive()) is not None
                with closing(engine.connect()) as connection:
                    (key,) = connection.execute(
                        "SELECT owner_id, incarnation FROM brokers WHERE name = 'a:7650'"
                    ).rows
                    assert members.set_draining(connection, key, True)
                began_ms = clock.now_ms()
                while not second.brokers:
                    await clock.advance(ms=100)
                    assert clock.now_ms() < began_ms + 5_000
                assert (failures, first.brokers) == (2, [])
        (broker,) = second.brokers
        # All deliveries of the first node count as possible ones.
        assert broker.services.activation.doubtful_until_ms > START_MS
        async with connected(running, "b") as client, client.consumer("t", "s") as inbox:
            message = await inbox.receive()
            assert message is not None
            assert (message.value, message.redelivered) == (b"x", True)
        await running.stop("a:7650", "b:7650")
    engine.close()


async def test_a_first_start_waits_for_a_row_that_stays_locked(
    tmp_path: Path, engine: Engine, mock_clock: trio.testing.MockClock
) -> None:
    """B8: many bundles begin their logs at the same time, and take turns at one row."""
    clock, locked = VirtualClock(START_MS), Once("INSERT INTO generations", TransactionAborted(""))
    locked.arm()
    runners = Runners.all_by(inline)
    node = made(FaultyEngine(engine, locked), tmp_path / "a", "a", clock, 2, runners)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        await clock.advance(seconds=1)
        assert locked.left == 0
        assert [broker.bundle_id for broker in node.brokers] == [0, 1]
        node.stop()
        while not node.stopped.is_set():
            await clock.advance(ms=100)


async def test_bundle_that_hangs_delays_no_other_bundle_of_its_node(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """O1, B8: a revoked token is refused within two seconds, also at the bundle that hangs."""
    hanging = HangingCalls()
    database, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    engine = FaultyEngine(database, hanging.before)
    runners = replace(Runners.all_by(inline), commits=hanging)
    node = made(engine, tmp_path / "a", "a", clock, 3, runners)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        root, token = Token.new(), Token.new()
        access = [broker.services.access for broker in node.brokers]
        await access[0].bootstrap("root", root.id, root.digest)
        await access[0].create_token("app", token.id, token.digest, None)
        await clock.advance(seconds=2)
        for one in access:
            one.authenticate(token.text)
        await clock.advance(seconds=1)  # the use is stored, so the bundle that hangs locks no token
        hanging.hang_at(nth(1, "INSERT INTO namespaces"))
        nursery.start_soon(
            node.brokers[1].registry.namespaces.create, NamespaceName("tenant", "new")
        )
        await clock.settle()
        assert hanging.is_hanging
        try:
            await access[0].revoke_token(token.id)
            set_bundle_count(database, 4)
            await clock.advance(seconds=2)
            for one in access:
                with pytest.raises(Unauthenticated):
                    one.authenticate(token.text)
            assert [broker.bundle_id for broker in node.brokers] == [0, 1, 2, 3]
        finally:
            hanging.release()
        await clock.advance(seconds=2)
        names = [len(list(broker.registry.namespaces)) for broker in node.brokers]
        assert names == [1] * 4  # of the creation that hung
        node.stop()
        while not node.stopped.is_set():
            await clock.advance(ms=100)
    engine.close()


async def test_status_shows_the_messages_per_second_of_a_node(
    engine: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8: those that it published and delivered, in all of its bundles."""
    clock = VirtualClock(START_MS)
    node = made(engine, tmp_path / "a", "a", clock, 2, Runners.all_by(inline))
    topics = topic_of_each_bundle(2)
    period_ms = node.config.limits.lease_ms // RENEWALS_PER_LEASE + 1
    async with trio.open_nursery() as nursery:
        running = Running(nursery, clock)
        await running.start("a:7650", node)
        async with connected(running) as client:

            async def load() -> int:
                (row,) = (await client.admin("cluster.status"))["nodes"]
                return int(row["load_per_s"])

            for topic in topics:
                await client.admin("subscriptions.create", topic=topic, subscription="s")
                await (await client.producer(topic)).send_many([b"x"] * 100)
            assert await load() == 0
            await clock.advance(ms=period_ms)
            assert await load() == 60
            async with client.consumer(topics[1], "s") as inbox:
                await inbox.ack(await arrived(inbox), durable=True)
            await clock.advance(ms=period_ms)
            assert await load() == 30
        await running.stop("a:7650")


async def test_operators_are_told_once_that_a_node_has_no_topics(
    tmp_path: Path,
    mysql_url: str,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B8: until there are as many bundles as nodes."""
    caplog.set_level(logging.INFO)
    engine, clock = open_engine(mysql_url, tmp_path), VirtualClock(START_MS)
    first = made(engine, tmp_path / "a", "a", clock, 1, Runners.all_by(inline))
    second = made(engine, tmp_path / "b", "b", clock, 1, Runners.all_by(inline))
    async with trio.open_nursery() as nursery:
        running = Running(nursery, clock)
        await running.start("a:7650", first)
        await running.start("b:7650", second)
        async with connected(running) as client:
            await clock.advance(seconds=3)
            hint = (await client.admin("cluster.status"))["hint"]
            assert hint.startswith("2 nodes share 1 bundle: one of them has no topics.")
            await client.admin("cluster.bundles", count=2)
            await clock.advance(seconds=3)
            assert (await client.admin("cluster.status"))["hint"] is None
        await running.stop("a:7650", "b:7650")
    told = [one.message for one in caplog.records if getattr(one, "event", "") == "node.hint"]
    assert told == [hint] * 2
    engine.close()


async def test_node_that_is_stopped_while_it_starts_ends_without_a_bundle(
    engine: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8: it does not go on to own bundles that it would never release."""
    stopped: list[Node] = []

    def stop(step: str) -> None:
        if step.lstrip().startswith(LOOK) and not stopped:
            stopped.append(node)
            node.stop()

    clock = VirtualClock(START_MS)
    node = made(FaultyEngine(engine, stop), tmp_path / "a", "a", clock, 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        for _ in range(50):
            await clock.advance(ms=100)
        assert stopped
        assert node.stopped.is_set()
        nursery.cancel_scope.cancel()
