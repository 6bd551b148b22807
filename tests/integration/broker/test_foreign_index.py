"""A broker restarts with its old index after another broker owned the log.

The index on a broker's disk reflects the log and the cursors at the time when that broker ended.
A later owner may have filled old messages into its own index and recorded the fill in the
database. The older index does not have these messages.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import StorageUnavailable
from escapement.pipeline.auditing.index_count import IndexCount
from escapement.pipeline.rebuild import rebuild
from escapement.storage import lease, members
from escapement.storage.blocking import inline
from escapement.storage.engine.base import Engine
from escapement.storage.engine.transaction import transaction
from escapement.storage.index.segments.manifest import ManifestFile
from escapement.storage.journal.journal import JournalPosition, trim_step
from escapement.storage.lease import Identity
from escapement.storage.log.log_table import RowKey
from escapement.testing import World, arrived
from support.storage.commit_pipelines import FaultyEngine

T = TypeVar("T")

TOPIC = "t/n/x"
PATIENT = BrokerConfig(ack_wait_ms=10**10, seed=0)


class Brokers:
    """A log, and two brokers that own it in turn, each with its own index directory."""

    def __init__(self) -> None:
        self.filling = True  # whether fills proceed
        self.unreachable = ""  # statements with this prefix fail

    async def run_blocking(self, function: Callable[..., T], /, *arguments: Any) -> T:
        if function.__name__ == "_read_due" and not self.filling:
            await trio.sleep_forever()
        return await inline(function, *arguments)

    def ask(self, step: str) -> None:
        if self.unreachable and step.startswith(self.unreachable):
            raise StorageUnavailable("the test made the database unreachable")

    @asynccontextmanager
    async def live(self, engine: Engine, elsewhere: Path) -> AsyncIterator[World]:
        faulty = FaultyEngine(engine, self.ask, lambda step: None)
        async with testing.start(config=PATIENT, engine=faulty, run=self.run_blocking) as world:
            self.directories = {"a": world.index_directory, "b": elsewhere / "index"}
            yield world

    async def start(self, world: World, name: str) -> None:
        """Start the broker of that name. The previous broker has ended."""
        world.index_directory = self.directories[name]
        await world.restart()


async def take(world: World, subscription: str) -> list[bytes]:
    """Receive and acknowledge all messages that have arrived."""
    async with world.connect() as broker, broker.consumer(TOPIC, subscription) as inbox:
        messages = await arrived(inbox)
        await inbox.ack([message.id for message in messages], durable=True)
        return [message.value for message in messages]


async def publish_and_acknowledge(world: World) -> None:
    """Publish messages and acknowledge them, so that no index has them any more."""
    async with world.connect() as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="first")
        producer = await broker.producer(TOPIC)
        await producer.send_many([b"1", b"2", b"3"])
    assert len(await take(world, "first")) == 3
    await world.checkpoint()


async def subscribe(world: World) -> None:
    async with world.connect() as broker:
        names = {"topic": TOPIC, "subscription": "late"}
        await broker.admin("subscriptions.create", **names, position="earliest")


async def test_messages_that_another_broker_filled_in_are_not_lost_to_an_older_index(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """P5, P6, invariant 7: group commits do not record the progress of a fill."""
    brokers = Brokers()
    async with brokers.live(engine, tmp_path) as world:
        await publish_and_acknowledge(world)
        brokers.filling = False
        await subscribe(world)
        await world.checkpoint()
        await world.crash()
        brokers.filling = True
        await brokers.start(world, "b")
        await world.clock.advance(seconds=1)
        await world.checkpoint()
        await world.crash()
        await brokers.start(world, "a")
        assert await take(world, "late") == [b"1", b"2", b"3"]


async def test_unfinished_checkpoint_of_another_broker_loses_no_messages(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """P5, P6, invariant 7: it crashes after writing the state, before trimming the journal."""
    brokers = Brokers()
    async with brokers.live(engine, tmp_path) as world:
        await publish_and_acknowledge(world)
        await world.stop()
        await brokers.start(world, "b")
        await subscribe(world)
        await world.clock.advance(seconds=1)
        brokers.unreachable = "DELETE FROM journal"
        await world.checkpoint()
        await world.crash()
        brokers.unreachable = ""
        await brokers.start(world, "a")
        assert await take(world, "late") == [b"1", b"2", b"3"]


async def test_broker_keeps_an_index_that_is_ahead_of_the_database(
    mock_clock: trio.testing.MockClock,
    engine: Engine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P5, B5: the broker writes manifests while the database is unreachable, and crashes."""
    brokers = Brokers()
    async with brokers.live(engine, tmp_path) as world:
        await publish_and_acknowledge(world)
        await subscribe(world)
        await world.clock.advance(seconds=1)
        for _ in range(3):
            # Neither the first nor the second checkpoint of this broker reaches the database.
            brokers.unreachable = "REPLACE INTO last_checkpoint"
            await world.checkpoint()
            await world.checkpoint()
            await world.crash()
            brokers.unreachable = ""
            await brokers.start(world, "a")
            assert world.server.index.segment_count
            await world.checkpoint()
        assert await take(world, "late") == [b"1", b"2", b"3"]
    assert "rebuilding it" not in caplog.text


@pytest.mark.parametrize(("is_other", "event"), [(True, "outdated"), (False, "foreign")])
async def test_old_index_is_a_warning_only_if_no_other_broker_had_the_bundle_meanwhile(
    is_other: bool,
    event: str,
    mock_clock: trio.testing.MockClock,
    engine: Engine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """O5: a bundle that moves away and back is usual, and a swapped data directory is not."""
    caplog.set_level(logging.INFO)
    brokers = Brokers()
    async with brokers.live(engine, tmp_path) as world:
        await publish_and_acknowledge(world)
        await world.stop()
        await brokers.start(world, "b")
        await subscribe(world)
        await world.stop()
        if is_other:
            other = members.register(engine, Identity("b" * 32, "b"), 1000, world.clock)
            with closing(engine.connect()) as connection:
                lease.release(
                    engine, connection, lease.take(engine, other, world.clock), clean=True
                )
        await brokers.start(world, "a")
        names = {"index.outdated", "index.foreign"}
        found = [
            (name, one.levelno)
            for one in caplog.records
            if (name := getattr(one, "event", "")) in names
        ]
        assert found == [(f"index.{event}", logging.INFO if is_other else logging.WARNING)]


async def test_rebuilt_index_is_current_until_another_broker_writes_a_checkpoint(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """P5, B7: the audit judges the index as a start does."""
    brokers = Brokers()
    connection = engine.connect()

    def unindexed() -> list[RowKey] | None:
        return IndexCount.open(tmp_path).unindexed(connection)

    async with brokers.live(engine, tmp_path) as world:
        await publish_and_acknowledge(world)
        await world.stop()
        rebuild(engine, Identity("0" * 32, "rebuild"), brokers.directories["b"], world.clock)
        assert unindexed() == []
        await brokers.start(world, "a")
        assert unindexed() == []
        await world.stop()
        assert unindexed() is None
        await brokers.start(world, "b")
        await world.stop()
        assert unindexed() == []
    connection.close()


async def test_checkpoint_during_a_comparison_does_not_make_the_index_stale(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """O7: the checkpoint trims the journal after its end was read, and before its entries are."""
    brokers = Brokers()
    async with brokers.live(engine, tmp_path) as world:
        await world.stop()
        await brokers.start(world, "b")
        await publish_and_acknowledge(world)
        async with world.connect() as broker, await broker.producer(TOPIC) as producer:
            await producer.send(b"later", delay=(1, "d"))
        brokers.unreachable = "DELETE FROM journal"
        await world.checkpoint()
        manifest = ManifestFile(tmp_path / "index").current
        assert manifest is not None
        trims = 0

        def trim(step: str) -> None:
            nonlocal trims
            if trims or not step.startswith("SELECT group_id FROM journal"):
                return
            trims += 1
            positions = {lane: JournalPosition(*at) for lane, at in manifest.positions.items()}
            with closing(engine.connect()) as writer, transaction(writer):
                assert not trim_step(writer, 0, positions)

        with closing(FaultyEngine(engine, trim).connect()) as reader:
            index = IndexCount.open(tmp_path)
            assert index.unindexed(reader) == []
            assert trims == 1
            assert index.unchanged()
            assert index.unindexed(reader) == []
