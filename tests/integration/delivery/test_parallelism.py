"""Changes of the log's number of tables during traffic."""

from __future__ import annotations

from contextlib import suppress
from itertools import count as counted

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import InvalidRequest, OutcomeUnknown, StorageUnavailable
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.database.rows import rows
from support.faults.dying_brokers import finish, lose_index
from support.storage.commit_pipelines import FaultyEngine, no_fault

TOPICS = ["a", "b", "c"]


async def set_tables(broker: escapement.Broker, count: int) -> tuple[int, int]:
    """Set the number of tables. Return the resulting log generation and number of tables."""
    stats = await broker.admin("broker.update", table_parallelism=count)
    return stats["log_generation"], stats["table_parallelism"]


async def publish(broker: escapement.Broker, topic: str, count: int) -> None:
    """Send messages one after the other. Check that their offsets have no gaps."""
    producer = await broker.producer(topic)
    for number in range(count):
        receipt = await producer.send(b"%d" % number)
        assert receipt.id.offset == number


async def everything(world: World, topic: str) -> list[bytes]:
    """Return all messages of the topic, in log order."""
    async with (
        world.connect() as broker,
        broker.consumer(
            topic, "all", kind="exclusive", position="earliest", permits=5_000
        ) as inbox,
    ):
        found = [message.value for message in await arrived(inbox)]
        await broker.admin("subscriptions.delete", topic=topic, subscription="all", force=True)
        return found


async def test_table_parallelism_changes_while_publishing_goes_on(
    engine: Engine, mock_clock: trio.testing.MockClock
) -> None:
    """N5: up and down. No message is lost, and offsets have no gaps, also with a rebuilt index."""
    async with testing.start(engine=engine, config=BrokerConfig(seed=0)) as world:
        async with world.connect() as broker, world.connect() as operator:
            for topic in TOPICS:
                await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with trio.open_nursery() as nursery:
                for topic in TOPICS:
                    nursery.start_soon(publish, broker, topic, 60)
                for generation, count in enumerate((7, 1, 3), 2):
                    assert await set_tables(operator, count) == (generation, count)
                    await trio.testing.wait_all_tasks_blocked()
            assert await set_tables(operator, 3) == (4, 3), "unchanged"
        expected = [b"%d" % number for number in range(60)]
        for topic in TOPICS:
            assert await everything(world, topic) == expected
        await world.crash()
        lose_index(world)
        await world.restart()
        async with world.connect() as broker:
            stats = await broker.admin("broker.stats")
            assert (stats["log_generation"], stats["table_parallelism"]) == (4, 3)
            for topic in TOPICS:
                assert await everything(world, topic) == expected
                async with broker.consumer(topic, "s") as inbox:
                    await world.clock.advance(seconds=1)
                    assert {message.value for message in await arrived(inbox)} == set(expected)


async def test_invalid_table_parallelism_is_refused_and_changes_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start() as world, world.connect() as broker:
        before = await broker.admin("broker.stats")
        for arguments in ({"table_parallelism": 257}, {"table_parallelism": 0}, {}, {"tables": 3}):
            with pytest.raises(InvalidRequest):
                await broker.admin("broker.update", **arguments)
        after = await broker.admin("broker.stats")
        # The rows of the audit log are commits.
        assert {name for name in after if after[name] != before[name]} <= {
            "commits", "commit_p50_us", "commit_p99_us",
        }  # fmt: skip


async def test_table_parallelism_cannot_change_during_a_database_outage(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N5."""
    outage = Outage()
    async with testing.start(engine=outage.engine) as world, world.connect() as broker:
        producer = await broker.producer("a")
        await producer.send(b"before")
        outage.unreachable()
        with pytest.raises(StorageUnavailable):
            await set_tables(broker, 2)
        outage.over()
        await world.clock.advance(seconds=5)
        assert await set_tables(broker, 2) == (2, 2)
        assert (await producer.send(b"after")).id.offset == 1
        assert await everything(world, "a") == [b"before", b"after"]


class LosesAt:
    """Loses the connection once, before or after the step with this number."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, step: str) -> None:
        self.left -= 1
        if not self.left:
            raise OutcomeUnknown("the connection was lost")


async def test_lost_connection_at_any_step_leaves_no_tables_behind(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """N5: also if the next try asks for fewer tables, or if a COMMIT got no reply."""
    faulty, fewer = FaultyEngine(engine), 2
    async with testing.start(engine=faulty, config=BrokerConfig(seed=0)) as world:
        for number in counted(1, 4 if engine.kind == "mysql" else 1):
            async with world.connect() as broker:
                faulty.before = faulty.after = loses = LosesAt(number)
                with suppress(StorageUnavailable):
                    await set_tables(broker, 5)
                faulty.before = faulty.after = no_fault
            if number % 3 == 0:
                await world.crash()
                await world.restart()
            async with world.connect() as broker:
                await world.clock.advance(seconds=3)
                fewer = 5 - fewer  # a different number, or no change would be tried
                assert (await set_tables(broker, fewer))[1] == fewer
                producer = await broker.producer("a")
                await producer.send(b"%d" % number)
            await finish(world, world.server.services.forgetter.round)
            log = world.server.services.log
            assert log.going == ()
            known = {
                one.table(shard) for one in log.generations for shard in range(one.parallelism)
            }
            there = rows(engine)
            assert {table for table in there if table.startswith("log_")} == known
            assert there["removals"] == 0
            if loses.left > 0:
                break
        assert number > 10
        assert len(await everything(world, "a")) > 2
