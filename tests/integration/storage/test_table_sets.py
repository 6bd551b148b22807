"""The log of a broker whose user has SELECT, INSERT, UPDATE and DELETE only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count

import pytest
import trio.testing

from escapement import testing
from escapement.errors import StorageUnavailable
from escapement.storage import lease as leases
from escapement.storage import schema
from escapement.storage.cleanup import forgetting
from escapement.storage.engine import existing
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.lease import Identity, as_owner
from escapement.storage.log.log import Log
from escapement.storage.log.table_sets import Plan
from escapement.storage.upgrade import upgrade
from support.database.accounts import FOUR_RIGHTS, account
from support.database.servers import SqlServer
from support.faults.dying_brokers import DiesAt
from support.storage.commit_pipelines import FaultyEngine, HandClock, no_fault
from support.storage.forgetting_brokers import (
    PARALLELISM,
    PATIENT,
    a_day_later,
    begin,
    forget,
    generations,
    roll,
    take,
)
from support.storage.open_log import NO_LIMIT, OpenLog

DDL = "CREATE, ALTER, DROP, CREATE VIEW"  # with these a broker creates and drops its tables itself


@pytest.fixture
def administrator(mysql_url: str) -> MysqlEngine:
    """Return the engine of a user with all rights on a database."""
    return MysqlEngine(MysqlAddress.parse(mysql_url))


@pytest.fixture
def broker_engine(mysql_server: SqlServer, mysql_url: str) -> Iterator[MysqlEngine]:
    """Return the engine of a user with four rights on the same database."""
    with account(mysql_server, mysql_url, FOUR_RIGHTS) as address:
        yield MysqlEngine(address)


def prepare(engine: Engine, sets: int) -> None:
    upgrade(engine, Plan(PARALLELISM, sets), lambda statement: None, dry_run=False)


def views(engine: Engine) -> set[str]:
    with closing(engine.connect()) as connection:
        return existing.views(engine, connection)


def delete(engine: Engine, log: Log, lease: leases.Lease) -> None:
    """Delete the generations that are going, as the forgetter does."""
    with closing(engine.connect()) as connection:
        for generation in log.going:
            assert not forgetting.drop_at_once(connection, engine, generation)
            with as_owner(engine, connection, lease):
                while forgetting.empty_step(engine, connection, generation):
                    pass
                forgetting.strike(connection, generation)


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_any_step_of_beginning_a_generation_leaves_each_set_free_or_used(
    administrator: MysqlEngine, broker_engine: MysqlEngine, when: str
) -> None:
    """P6, N5: after a restart, the log has a whole current generation, and no set is lost."""
    prepare(administrator, 3)
    faulty = FaultyEngine(broker_engine)
    clock = HandClock()
    for number in count(1):
        lease = leases.acquire(faulty, Identity("a", "a"), 60_000, clock)
        with closing(faulty.connect()) as connection:
            log = Log.open(faulty, connection, lease, PARALLELISM, 0)
            dies = DiesAt(number)
            setattr(faulty, when, dies)
            with suppress(StorageUnavailable):
                log.prepare(faulty, connection, lease, PARALLELISM, 0)
            faulty.before = faulty.after = no_fault
        lease = leases.acquire(faulty, Identity("a", "a"), 60_000, clock)
        with closing(faulty.connect()) as connection:
            log = Log.open(faulty, connection, lease, PARALLELISM, 0)
            delete(faulty, log, lease)
            log = Log.open(faulty, connection, lease, PARALLELISM, 0)
            assert not log.going
            assert all(one.table_set for one in log.generations)
            assert [one.id for one in log.generations] == generations(faulty)
            while len(log.generations) > 1:  # the next attempt needs a free set again
                with as_owner(faulty, connection, lease):
                    forgetting.mark(connection, log.generations[0])
                log.retire(log.generations[0])
            delete(faulty, log, lease)
        if not dies.dead:
            break
    assert number > (2 if when == "after" else 6)


def test_set_that_was_taken_in_a_commit_without_a_reply_is_taken_again(
    administrator: MysqlEngine, broker_engine: MysqlEngine
) -> None:
    """N5: otherwise the last free set is lost, and the log cannot go on until a restart."""
    prepare(administrator, 2)
    faulty = FaultyEngine(broker_engine)
    opened = OpenLog(faulty)
    with closing(faulty.connect()) as connection:
        faulty.after = DiesAt(2)  # the second commit takes the set
        with pytest.raises(StorageUnavailable):
            opened.log.prepare(faulty, connection, opened.lease, PARALLELISM, 0)
    faulty.after = no_fault
    opened.roll(PARALLELISM)
    assert [one.table_set for one in opened.log.generations] == [1, 2]
    opened.write(1, 0, 5)
    delete(faulty, opened.log, opened.lease)
    assert generations(faulty) == [1, 3]
    rows, _ = opened.log.read_due(opened.connection, 1, 0, 10, 0, NO_LIMIT)
    assert [row.key.base_offset for row in rows] == [0]
    opened.connection.close()


def test_reader_with_an_old_list_finds_no_rows_of_the_later_user_of_a_set(
    administrator: MysqlEngine, broker_engine: MysqlEngine
) -> None:
    """N1: otherwise a Spark job would read rows of a later generation out of order."""
    prepare(administrator, 2)
    opened = OpenLog(broker_engine)
    opened.write(1, 0, 5)
    with closing(broker_engine.connect()) as connection:
        old = Log.look(connection)
        found: list[int] = []

        def read(log: Log) -> list[int]:
            """Read the log. Meanwhile, the first time, its generation is deleted."""
            if not found:
                found.append(log.generations[0].id)
                for _ in range(2):
                    opened.roll(PARALLELISM)
                    first = opened.log.generations[0]
                    with as_owner(broker_engine, opened.connection, opened.lease):
                        forgetting.mark(opened.connection, first)
                    opened.log.retire(first)
                    delete(broker_engine, opened.log, opened.lease)
                    opened.log.forget(first)
                opened.write(1, 5, 5)
            rows, _ = log.read_due(connection, 1, 0, 10, 0, NO_LIMIT)
            return [row.key.base_offset for row in rows]

        assert Log.reading(connection, read) == [5]
        assert old.generations[0].table_set == opened.log.current.table_set
        assert old.first_offset(connection, 1) is None
        assert old.end_offset(connection, 1) == 0
        assert list(old.heads(connection, 1, 0, 10)) == []
        assert list(old.scan_keys(connection, NO_LIMIT)) == []
        rows, _ = opened.log.read_due(connection, 1, 0, 10, 0, NO_LIMIT)
        assert [row.key.base_offset for row in rows] == [5]
    opened.connection.close()


async def test_log_goes_on_in_its_generation_until_a_set_is_free(
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    administrator: MysqlEngine,
    broker_engine: MysqlEngine,
) -> None:
    """V1, N5: without a set, no message is lost, and warnings say once what to run."""
    prepare(administrator, 1)
    async with testing.start(config=PATIENT, engine=broker_engine) as world:
        async with world.connect() as broker:
            producer = await begin(broker)
            with caplog.at_level(logging.WARNING):
                for n in range(3):
                    await producer.send(b"%d" % n)
                    await roll(world)
            assert generations(broker_engine) == [1]
            said = [text for text in caplog.messages if "migrate --table-parallelism 2" in text]
            assert len(said) == 2
            assert "no table set with 2 tables is free" in said[0]
            assert said[1].startswith("0 table sets are free, and 2 should be")
            prepare(administrator, 3)  # beside the running broker
            assert await take(broker) == [b"0", b"1", b"2"]
            await a_day_later(world)
            assert len(generations(broker_engine)) == 1
            assert generations(broker_engine) != [1]


async def test_tables_that_the_broker_may_not_drop_are_emptied_and_dropped_later(
    mock_clock: trio.testing.MockClock,
    mysql_server: SqlServer,
    mysql_url: str,
    administrator: MysqlEngine,
) -> None:
    """Q7: a broker that loses the right to change the schema goes on with table sets."""
    with account(mysql_server, mysql_url, f"{FOUR_RIGHTS}, {DDL}") as address:
        engine = MysqlEngine(address)
        async with testing.start(config=PATIENT, engine=engine) as world:
            async with world.connect() as broker:
                assert len(views(administrator)) == 3
                producer = await begin(broker)
                await producer.send_many([b"%d" % n for n in range(100)])
                assert len(await take(broker)) == 100
                prepare(administrator, 2)
                mysql_server.admin(f"REVOKE {DDL} ON {address.database}.* FROM {address.user}@'%'")
                await roll(world)
                await forget(world)
                await producer.send(b"later")
                assert await take(broker) == [b"later"]
        with closing(administrator.connect()) as connection:
            assert {"log_1_0", "log_1_1"} <= existing.tables(administrator, connection)
            for shard in range(PARALLELISM):
                assert connection.execute(f"SELECT 1 FROM log_1_{shard}").rows == []
        prepare(administrator, 2)
        assert generations(administrator) == [2]


def test_broker_whose_user_may_not_create_tables_says_what_to_run(
    broker_engine: MysqlEngine,
) -> None:
    with pytest.raises(Exception, match="Run `escapement migrate --log URL` with a user that may"):
        schema.migrate(broker_engine)
