"""Reasons why messages of tables wait are shown to the operator, and logged once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from escapement.errors import StorageUnavailable
from escapement.testing import World
from support.database.servers import MysqlServer, free_port
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock


@pytest.fixture
def shop(mysql_to_break: MysqlServer) -> Iterator[Shop]:
    """A shop on a server that may be broken, whose broker may read and change its rows."""
    server = mysql_to_break
    server.admin("CREATE DATABASE breaking")
    server.admin("CREATE USER breaker@'%' IDENTIFIED BY 'x'")
    server.admin("GRANT SELECT, UPDATE, DELETE ON breaking.* TO breaker@'%'")
    yield Shop(server.url("breaking"))
    server.restore()
    server.admin("SET GLOBAL read_only = 0")
    server.admin("DROP DATABASE breaking")
    server.admin("DROP USER breaker@'%'")


def seen_by(shop: Shop, **changes: Any) -> Shop:
    """Return the same shop as the broker connects to it."""
    other = Shop(shop.url)
    other.address = replace(shop.address, user="breaker", password="x", **changes)
    return other


def waiting(world: World) -> list[str]:
    """Return ``tables_waiting`` of the broker's figures."""
    found: list[str] = world.server.stats()["tables_waiting"]
    return found


def states(world: World) -> dict[str, str]:
    """Return the state of each table, by its name."""
    return {
        row["table"].rpartition("/")[2]: row["state"]
        for row in world.server.services.tables.listed()
    }


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("escapement.broker.tables")
    ]


async def pass_time(world: World, seconds: int) -> None:
    """Advance in small steps, because the tasks of a broker wait for each other."""
    for _ in range(10 * seconds):
        await world.clock.advance(ms=100)


def kill_connections(server: MysqlServer) -> None:
    """End the connections of the broker."""
    for (id,) in server.admin("SELECT ID FROM information_schema.PROCESSLIST WHERE USER='breaker'"):
        server.admin(f"KILL {id}")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"password": "wrong"}, "refuses this user"),
        ({"port": 0}, "Connection refused"),
        ({"database": "missing"}, "missing"),
    ],
    ids=["password", "port", "database"],
)
async def test_database_that_cannot_be_opened_is_shown_and_logged_once(
    shop: Shop,
    mock_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    why: str,
) -> None:
    if "port" in changes:
        changes = {"port": free_port()}
    broken = seen_by(shop)
    broken.address = replace(broken.address, **changes)
    topic = f"table://{broken.address.database}/mails"
    async with serving_tables(broken) as world:
        for _ in range(10):
            await pass_time(world, 1)
            (problem,) = waiting(world)
            assert why in problem
            assert problem.count(str(broken.address)) == 1
        with pytest.raises(StorageUnavailable, match=why):
            await world.server.services.tables.find(topic)
        assert len(warnings(caplog)) == 1


async def test_locked_account_is_shown_and_logged_once_until_the_database_works_again(
    shop: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = mysql_to_break
    topic, _ = shop.create(comment=comment(poller_interval=1)), shop.create("texts")
    async with serving_tables(seen_by(shop)) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            shop.insert()
            messages = await taken(world, consumer, seconds=2)
            assert (waiting(world), states(world)) == ([], {"mails": "ok", "texts": "ok"})
            server.admin("ALTER USER breaker@'%' ACCOUNT LOCK")
            kill_connections(server)
            await consumer.ack(messages)
            shop.insert()
            for number in range(8):
                await pass_time(world, 1)
                if number:
                    (problem,) = waiting(world)
                    assert "refuses this user" in problem
                    assert all("refuses this user" in one for one in states(world).values())
            assert len(warnings(caplog)) == 1
            server.admin("ALTER USER breaker@'%' ACCOUNT UNLOCK")
            assert len(await taken(world, consumer, seconds=10)) == 1
            assert (waiting(world), states(world)) == ([], {"mails": "ok", "texts": "ok"})


async def test_refused_claims_of_a_table_are_its_state_and_name_the_missing_right(
    shop: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be sent from a table whose rows the broker may only read."""
    server = mysql_to_break
    topic, other = shop.create(), shop.create("texts")
    server.admin("REVOKE ALL PRIVILEGES ON breaking.* FROM breaker@'%'")
    server.admin("GRANT SELECT ON breaking.mails TO breaker@'%'")
    server.admin("GRANT SELECT, UPDATE, DELETE ON breaking.texts TO breaker@'%'")
    async with serving_tables(seen_by(shop)) as world, world.connect() as broker:
        async with (
            broker.consumer(topic, "table") as consumer,
            broker.consumer(other, "table") as texts,
        ):
            shop.insert()
            shop.insert("texts")
            assert len(await taken(world, texts, seconds=2)) == 1
            for _ in range(8):
                await pass_time(world, 1)
                (problem,) = waiting(world)
                assert f"{seen_by(shop).address}, table mails: " in problem
                found = states(world)
                assert found["texts"] == "ok"
                assert "command denied" in found["mails"]
                assert "GRANT SELECT, UPDATE, DELETE ON `breaking`.`mails`" in found["mails"]
            assert len(warnings(caplog)) == 1
            server.admin("GRANT UPDATE ON breaking.mails TO breaker@'%'")
            kill_connections(server)
            assert len(await taken(world, consumer, seconds=10)) == 1
            assert (waiting(world), states(world)) == ([], {"mails": "ok", "texts": "ok"})
        # Nothing is claimed for a table without consumers, so it has no problem.
        server.admin("REVOKE UPDATE ON breaking.mails FROM breaker@'%'")
        kill_connections(server)
        async with broker.consumer(topic, "table"):
            shop.insert()
            await pass_time(world, 2)
            assert states(world)["mails"] != "ok"
        await pass_time(world, 2)
        assert states(world)["mails"] == "ok"


@pytest.mark.parametrize("kind", ["kill", "read_only"])
async def test_outage_is_shown_until_it_ends_and_logged_once(
    shop: Shop,
    mysql_to_break: MysqlServer,
    mock_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    server = mysql_to_break
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(seen_by(shop)) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            for _ in range(2):
                shop.insert()
                messages = await taken(world, consumer, seconds=2)
                assert waiting(world) == []
                caplog.clear()
                if kind == "kill":
                    await consumer.ack(messages)
                    server.kill()
                else:
                    server.admin("SET GLOBAL read_only = 1")
                    shop.insert()
                for number in range(20):
                    await pass_time(world, 1)
                    if number:
                        assert len(waiting(world)) == 1
                        assert states(world)["mails"] != "ok"
                assert len(warnings(caplog)) == 1
                if kind == "kill":
                    server.start()
                else:
                    server.admin("SET GLOBAL read_only = 0")
                await pass_time(world, 10)
                assert (waiting(world), states(world)) == ([], {"mails": "ok"})


async def test_outage_is_not_shown_after_the_last_consumer_has_left(
    shop: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock
) -> None:
    """Nothing is claimed after the outage, so no claim can show that it has ended."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(seen_by(shop)) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            shop.insert()
            assert len(await taken(world, consumer, seconds=2)) == 1
            mysql_to_break.admin("SET GLOBAL read_only = 1")
            shop.insert()
            for _ in range(20):
                await pass_time(world, 1)
                assert "read-only" in states(world)["mails"]
        mysql_to_break.admin("SET GLOBAL read_only = 0")
        await pass_time(world, 16)
        assert (waiting(world), states(world)) == ([], {"mails": "ok"})


async def test_row_that_cannot_be_written_is_the_state_of_its_table_and_logged_once(
    shop: Shop, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = shop.create(), shop.create("texts")
    shop.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON mails FOR EACH ROW"
        " IF NEW.time_acked IS NOT NULL AND NEW.tenant_id = 7"
        " THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
    )
    async with serving_tables(seen_by(shop)) as world, world.connect() as broker:
        async with (
            broker.consumer(topic, "table") as consumer,
            broker.consumer(other, "table") as texts,
        ):
            shop.insert(tenant_id=7)
            (refused,) = await taken(world, consumer, seconds=2)
            await consumer.ack(refused)
            for _ in range(8):
                shop.insert("texts")
                await pass_time(world, 2)
                for message in await taken(world, texts, ms=10):
                    await texts.ack(message)
                found = states(world)
                assert "not this one" in found["mails"]
                assert found["texts"] == "ok"
            assert len(warnings(caplog)) == 1
            shop.run("DROP TRIGGER refuse")
            await pass_time(world, 5)
            assert states(world)["mails"] == "ok"


async def test_locked_table_is_shown_with_the_reason(shop: Shop, mock_clock: MockClock) -> None:
    """An ALTER TABLE that waits for a transaction locks the table, too."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(seen_by(shop)) as world, world.connect() as broker:
        async with broker.consumer(topic, "table"):
            await pass_time(world, 1)
            with shop.session() as session:
                session.execute("LOCK TABLES mails WRITE")
                await pass_time(world, 3)
                assert "Another session locks the table, such as" in states(world)["mails"]
            await pass_time(world, 6)
            assert states(world)["mails"] == "ok"


async def test_database_that_does_not_answer_is_shown(shop: Shop, mock_clock: MockClock) -> None:
    """A statement of a stopped server ends with an error only after a long time."""
    shop.create()
    async with serving_tables(seen_by(shop)) as world:
        await pass_time(world, 1)
        (database,) = world.server.services.tables.databases.values()
        answers, run = trio.Event(), database._run

        async def hang(function: Any, /, *arguments: Any) -> Any:
            await answers.wait()
            return await run(function, *arguments)

        database._run = hang
        await pass_time(world, 9)
        (problem,) = waiting(world)
        assert problem.startswith(f"{database.location}: the database has not answered for ")
        assert states(world)["mails"].startswith("the database has not answered for ")
        answers.set()
        await pass_time(world, 1)
        assert (waiting(world), states(world)) == ([], {"mails": "ok"})
