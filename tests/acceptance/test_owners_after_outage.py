"""An outage of the database that outlasts the leases of several nodes (B8)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import escapement
from escapement.storage import lease
from escapement.storage.bundles import set_bundle_count
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.ownership import Ownership, look_at_all
from escapement.storage.schema import migrate
from support.bundle_topics import topic_of_each_bundle
from support.database.servers import MysqlServer
from support.processes.broker import PATIENT, BrokerProcess, until

BUNDLES: Final = 6
# Long enough for a busy machine.
LEASE_MS: Final = 5_000
LIMITS: Final[dict[str, Any]] = {"lease_ms": LEASE_MS}
# The promise of a failover after the death of a node, and what a busy machine may add. It is less
# than the time for which nodes must be stable before a bundle moves for balance.
FAILOVER_S: Final = 1.5 * LEASE_MS / 1000 + 2 + 15


@pytest.fixture
def database(mysql_to_break: MysqlServer, tmp_path: Path) -> Iterator[Engine]:
    """A database with several bundles, on a server that the test may stop."""
    mysql_to_break.admin("CREATE DATABASE escapement_owners CHARACTER SET utf8mb4")
    engine = open_engine(mysql_to_break.url("escapement_owners"), tmp_path)
    migrate(engine)
    set_bundle_count(engine, BUNDLES)
    yield engine
    engine.close()
    mysql_to_break.restore()
    mysql_to_break.admin("DROP DATABASE escapement_owners")


@pytest.fixture
def nodes(
    database: Engine, mysql_to_break: MysqlServer, tmp_path: Path
) -> Iterator[list[BrokerProcess]]:
    """Three processes on the database, started."""
    url = mysql_to_break.url("escapement_owners")
    with ExitStack() as stack:
        found = [BrokerProcess(tmp_path / name, url, limits=LIMITS) for name in ("a", "b", "c")]
        for one in found:
            stack.callback(one.remove)
            one.start()
        yield found


def name_of(node: BrokerProcess) -> str:
    return f"127.0.0.1:{node.port}"


def look(database: Engine) -> tuple[dict[str, str], dict[int, Ownership]]:
    """Return the names of the live nodes by their ids, and the owners of all bundles."""
    with closing(database.connect()) as connection:
        live, bundles = look_at_all(database, connection)
    return {row.owner_id: row.name for row in live.values()}, bundles


def owners(database: Engine) -> dict[int, str]:
    """Return the name of the live owner of each bundle that has one."""
    live, bundles = look(database)
    return {b: live[row.owner_id] for b, row in bundles.items() if not row.free}


def pin(database: Engine, wanted: dict[int, BrokerProcess]) -> dict[int, str]:
    """Move bundles to nodes, as an operator does. Return the names of their next owners."""
    ids = {name: node_id for node_id, name in look(database)[0].items()}
    with closing(database.connect()) as connection:
        for bundle_id, node in wanted.items():
            lease.pin(connection, bundle_id, ids[name_of(node)])
    return {bundle_id: name_of(node) for bundle_id, node in wanted.items()}


async def until_in_thread(condition: Callable[[], bool]) -> None:
    """Wait until a condition that takes a while to look at is true."""
    with trio.fail_after(60):
        while not await trio.to_thread.run_sync(condition):
            pass


async def test_bundles_stay_where_they_are_after_an_outage_and_move_after_a_kill(
    nodes: list[BrokerProcess], database: Engine, mysql_to_break: MysqlServer
) -> None:
    """A failover takes no longer than before."""
    wanted = pin(database, {bundle_id: nodes[bundle_id // 2] for bundle_id in range(BUNDLES)})
    await until_in_thread(lambda: owners(database) == wanted)
    url = "escapement://" + ",".join(name_of(node) for node in nodes)
    names = topic_of_each_bundle(BUNDLES)
    async with escapement.connect(url, settings=PATIENT) as client:
        for name in names:
            await (await client.producer(name)).send(b"before")
        before = look(database)[1]
        mysql_to_break.stop()
        stopped_s = time.monotonic()
        await until(lambda: time.monotonic() > stopped_s + 1.5 * LEASE_MS / 1000)
        mysql_to_break.start()
        await until_in_thread(lambda: owners(database) == wanted)
        for name in names:
            await (await client.producer(name, send_timeout=(60, "s"))).send(b"after")
        # No node owns a bundle in the place of another one: nothing more would move.
        after = look(database)[1]
        assert {b: row.epoch for b, row in after.items()} == {
            b: row.epoch for b, row in before.items()
        }
        assert owners(database) == wanted
        nodes[2].kill()
        killed_s = time.monotonic()
        await until_in_thread(
            lambda: (
                len(owners(database)) == BUNDLES
                and name_of(nodes[2]) not in owners(database).values()
            )
        )
        assert time.monotonic() - killed_s < FAILOVER_S
    for node in nodes[:2]:
        assert len(node.lines("these nodes get time to renew")) <= 1
