"""Bundles for which the database has too few table sets or connections."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing

from escapement import testing
from escapement.broker.config import BrokerConfig
from escapement.broker.node.node import Node
from escapement.broker.node.preparation import prepare
from escapement.cli.main import run
from escapement.errors import MissingRight
from escapement.storage.bundles import bundle_count, set_bundle_count
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.log.table_sets import Plan
from escapement.storage.ownership import look_at_all
from escapement.storage.upgrade import upgrade
from escapement.testing.clock import START_MS, VirtualClock
from support.database.accounts import FOUR_RIGHTS, PASSWORD, account
from support.database.servers import SqlServer
from support.storage.virtual_node import virtual_node

PARALLELISM: Final = 1
CONFIG: Final = BrokerConfig(seed=0, table_parallelism=PARALLELISM)


@pytest.fixture
def address(mysql_server: SqlServer, mysql_url: str) -> Iterator[MysqlAddress]:
    """Return the address of a database for a user that may not create tables."""
    with account(mysql_server, mysql_url, FOUR_RIGHTS) as found:
        yield found


def create_sets(mysql_url: str, total: int) -> None:
    """Run the migration of an administrator."""
    engine = MysqlEngine(MysqlAddress.parse(mysql_url))
    upgrade(engine, Plan(PARALLELISM, total), lambda statement: None, dry_run=False)


@asynccontextmanager
async def node_on(address: MysqlAddress, data: Path) -> AsyncIterator[tuple[Node, VirtualClock]]:
    """Run a node. It need not have started."""
    clock = VirtualClock(START_MS)
    node = virtual_node(MysqlEngine(address), data, clock, config=CONFIG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        yield node, clock
        node.stop()


def serving(node: Node) -> list[int]:
    return [broker.bundle_id for broker in node.brokers]


async def test_bundles_are_refused_until_there_are_table_sets_for_them(
    mock_clock: trio.testing.MockClock, mysql_url: str, address: MysqlAddress
) -> None:
    """B8: otherwise the brokers of the new bundles could not begin."""
    create_sets(mysql_url, 6)
    engine = MysqlEngine(address)
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        with pytest.raises(MissingRight) as refusal:
            await broker.admin("cluster.bundles", count=3)
        assert "3 bundles need 8 free table sets with 1 tables, and 5 are free" in str(
            refusal.value
        )
        with closing(engine.connect()) as connection:
            assert bundle_count(connection) == 1
        (command,) = re.findall(r"escapement (migrate [-a-z0-9 ]+)$", str(refusal.value))
        assert run([*command.split(), "--log", mysql_url]) == 0
        assert (await broker.admin("cluster.bundles", count=3))["before"] == 1


async def test_a_bundle_without_a_table_set_starts_when_there_is_one_and_disturbs_no_other(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    mysql_url: str,
    address: MysqlAddress,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B8: another account, or an older version, may add bundles without a look at the sets."""
    create_sets(mysql_url, 1)
    engine = MysqlEngine(address)
    async with node_on(address, tmp_path) as (node, clock):
        await clock.advance(seconds=1)
        set_bundle_count(engine, 2)
        for _ in range(130):
            await clock.advance(seconds=1)
        assert serving(node) == [0]
        failures = [one for one in caplog.messages if one.startswith("bundle 1 cannot start")]
        pauses = [int(found) for one in failures for found in re.findall(r"again in (\d+) s", one)]
        assert pauses == [2, 4, 8, 16, 32, 60, 60]
        with closing(engine.connect()) as connection:
            assert look_at_all(engine, connection)[1][1].free
        create_sets(mysql_url, 2)
        await clock.advance(seconds=61)
        assert serving(node) == [0, 1]


async def test_a_node_of_one_bundle_without_a_table_set_ends_with_the_command(
    mock_clock: trio.testing.MockClock, tmp_path: Path, mysql_url: str, address: MysqlAddress
) -> None:
    create_sets(mysql_url, 0)
    with pytest.raises(ExceptionGroup) as failure:
        async with node_on(address, tmp_path) as (node, _):
            await node.stopped.wait()
    assert failure.group_contains(MissingRight, match="escapement migrate --table-parallelism 1")


def test_a_first_start_with_bundles_is_refused_until_the_named_command_has_run(
    mysql_url: str, address: MysqlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    """O7: the sets of a default migration are enough for five bundles."""
    assert run(["migrate", "--log", mysql_url]) == 0
    engine = MysqlEngine(address)
    with pytest.raises(MissingRight) as refusal:
        prepare(engine, 6, 4)
    assert "6 bundles need 18 free table sets with 4 tables, and 16 are free" in str(refusal.value)
    (command,) = re.findall(r"escapement (migrate [-a-z0-9 ]+)$", str(refusal.value))
    assert run([*command.split(), "--log", mysql_url]) == 0
    assert "created the table log_set_18_3" in capsys.readouterr().out
    prepare(engine, 6, 4)
    with closing(engine.connect()) as connection:
        assert bundle_count(connection) == 6


def test_doctor_names_a_migration_after_which_it_finds_nothing(
    mysql_url: str, address: MysqlAddress, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """O7: also for bundles that exist, of which each has taken a set."""
    assert run(["migrate", "--log", mysql_url]) == 0
    set_bundle_count(MysqlEngine(MysqlAddress.parse(mysql_url)), 8)
    url = f"mysql://{address.user}@{address.host}:{address.port}/{address.database}"
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    options = ["--log", url, "--log-password-file", str(password), "--data", str(tmp_path)]

    def found() -> str:
        run(["doctor", *options])
        return capsys.readouterr().out

    capsys.readouterr()
    said = found()
    assert "16 table sets are free: the log needs 24 free sets" in " ".join(said.split())
    (command,) = re.findall(r"escapement (migrate [-a-z0-9 ]+)`", " ".join(said.split()))
    assert run([*command.split(), "--log", mysql_url]) == 0
    assert "table sets" not in found()
    assert run(["migrate", "--log", mysql_url]) == 0
    assert "The tables are up to date." in capsys.readouterr().out


async def test_a_start_waits_for_a_server_that_has_no_connection_left(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    mysql_server: SqlServer,
    mysql_url: str,
    address: MysqlAddress,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Q7: wherever the start meets the limit, the node does not end."""
    most = 12  # enough for two bundles, and for the reads of both at once
    create_sets(mysql_url, 2)
    set_bundle_count(MysqlEngine(MysqlAddress.parse(mysql_url)), 2)
    mysql_server.admin(f"ALTER USER {address.user}@'%' WITH MAX_USER_CONNECTIONS {most}")
    for free in range(most):
        caplog.clear()
        others = [MysqlEngine(address).connect() for _ in range(most - free)]
        async with node_on(address, tmp_path / str(free)) as (node, clock):
            await clock.advance(seconds=5)
            assert free or "the start waits" in caplog.text
            for connection in others:
                connection.close()
            for _ in range(20):
                await clock.advance(seconds=1)
            assert serving(node) == [0, 1], free
        assert free == 0 or f"max_user_connections is {most}" in caplog.text


async def test_more_bundles_than_the_server_has_connections_for_are_a_warning(
    mock_clock: trio.testing.MockClock,
    mysql_server: SqlServer,
    mysql_url: str,
    address: MysqlAddress,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B8: in the answer, and in the log."""
    create_sets(mysql_url, 16)
    mysql_server.admin(f"ALTER USER {address.user}@'%' WITH MAX_USER_CONNECTIONS 40")
    engine = MysqlEngine(address)
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        assert (await broker.admin("cluster.bundles", count=2))["warning"] is None
        answer = await broker.admin("cluster.bundles", count=3)
        assert answer["bundles"] == 3
        assert "all 3 bundles may need 41 connections" in answer["warning"]
        assert answer["warning"].endswith("Set max_user_connections to 41 or more.")
        assert answer["warning"] in caplog.text
