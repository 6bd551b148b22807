"""Errors about one message table end neither the broker nor the deliveries of other tables."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import trio

from escapement.errors import InvalidRequest
from escapement.storage.engine.base import Connection
from escapement.testing import arrived
from support.database.servers import MysqlServer
from support.tables.shops import Shop, serving_tables

MockClock = trio.testing.MockClock


async def test_row_that_cannot_be_acknowledged_holds_up_no_other(
    shop: Shop, mock_clock: MockClock
) -> None:
    """A trigger of the application refuses the change of one row."""
    topic = shop.create()
    shop.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON mails FOR EACH ROW"
        " IF NEW.time_acked IS NOT NULL AND NEW.tenant_id = 7"
        " THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
    )
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        refused = shop.insert(tenant_id=7)
        others = [shop.insert(tenant_id=8) for _ in range(3)]
        await world.clock.advance(seconds=31)
        messages = await arrived(consumer)
        assert len(messages) == 4
        for message in messages:
            await consumer.ack(message)
        for _ in range(20):
            await world.clock.advance(seconds=2)
        assert [shop.row(id, "time_acked IS NULL") for id in others] == [(0,)] * 3
        assert shop.row(refused, "time_acked") == (None,)
        shop.run("DROP TRIGGER refuse")
        await world.clock.advance(seconds=10)
        assert shop.row(refused, "time_acked IS NULL") == (0,)


async def test_acknowledgements_that_fail_hold_up_no_other_table(
    shop: Shop, mock_clock: MockClock
) -> None:
    """Many acknowledgements of one table are refused. Those of the other are written at once."""
    topic, bad = shop.create(), shop.create("letters")
    shop.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON letters FOR EACH ROW"
        " IF NEW.time_acked IS NOT NULL AND NEW.tenant_id = 7"
        " THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
    )
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
        broker.consumer(bad, "table") as other,
    ):
        shop.fill(60, "letters", tenant_id=7)
        shop.fill(60, "letters", tenant_id=8)
        shop.insert()
        await world.clock.advance(seconds=31)
        letters, (message,) = await arrived(other), await arrived(consumer)
        (database,) = world.server.services.tables.databases.values()
        connections = shop.run("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1]
        written: list[int] = []
        write = database.writer._write

        def count(call: Callable[[Connection], None]) -> None:
            written.append(1)
            write(call)

        database.writer._write = count
        for letter in letters:
            await other.ack(letter)
        await consumer.ack(message, durable=True)
        assert len(letters) == 120
        assert len(written) < 10
        for _ in range(60):
            await world.clock.advance(seconds=1)
        acked = shop.run("SELECT tenant_id, COUNT(time_acked) FROM letters GROUP BY 1 ORDER BY 1")
        assert acked == ((7, 0), (8, 60))
        # The refused statements ended no connection. This test has opened three.
        assert int(shop.run("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1]) <= int(connections) + 3
        shop.run("DROP TRIGGER refuse")
        for _ in range(20):
            await world.clock.advance(seconds=1)
        assert shop.run("SELECT COUNT(*) FROM letters WHERE time_acked IS NULL") == ((0,),)


async def test_refused_acknowledgements_hold_up_no_good_ones_of_their_table(
    shop: Shop, mock_clock: MockClock
) -> None:
    """Each of many acknowledgements has one row that is refused. More come all the time."""
    topic = shop.create()
    shop.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON mails FOR EACH ROW"
        " IF NEW.time_acked IS NOT NULL AND NEW.id % 5 = 0"
        " THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
    )
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table", permits=1000) as consumer,
    ):
        shop.fill(300)
        await world.clock.advance(seconds=31)
        messages = await arrived(consumer)
        assert len(messages) == 300
        for first in range(0, 300, 10):
            await consumer.ack(messages[first : first + 10])
            await world.clock.advance(ms=500)
        waiting = "SELECT id % 5 = 0, COUNT(*) FROM mails WHERE time_acked IS NULL GROUP BY 1"
        for _ in range(5):
            await world.clock.advance(seconds=1)
        assert shop.run(waiting) == ((1, 60),)
        shop.run("DROP TRIGGER refuse")
        for _ in range(10):
            await world.clock.advance(seconds=1)
        assert shop.run(waiting) == ()


async def test_table_that_cannot_be_polled_holds_up_no_other(
    shop: Shop, mock_clock: MockClock
) -> None:
    """An index that is ignored is still a part of the definition."""
    topic, bad = shop.create(), shop.create("letters")
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
        broker.consumer(bad, "table") as other,
    ):
        await world.clock.advance(seconds=1)
        off, on = ("IGNORED", "NOT IGNORED") if shop.on_mariadb else ("INVISIBLE", "VISIBLE")
        shop.run(f"ALTER TABLE letters ALTER INDEX poller_idx {off}")
        shop.insert("letters")
        for number in range(3):
            shop.insert(tenant_id=number)
            await world.clock.advance(seconds=31)
            (message,) = await arrived(consumer)
            assert message.row["tenant_id"] == number
            await consumer.ack(message, durable=True)
        assert await arrived(other) == []
        shop.run(f"ALTER TABLE letters ALTER INDEX poller_idx {on}")
        for _ in range(3):
            await world.clock.advance(seconds=31)
        assert await arrived(other) != []


@pytest.mark.parametrize(
    ("type", "bad", "good"),
    [
        ("BIGINT", [1 << 63, "abc", "1_0", 1.7, b"1"], [7, "8"]),
        ("BIGINT UNSIGNED", [-1, 1 << 64, "abc"], [(1 << 64) - 1, "8"]),
        ("DECIMAL(9,2)", ["abc", "1.234", "1e3"], [Decimal("1.5"), 2]),
        ("VARBINARY(9)", [7], [b"\xff", "a"]),
        ("VARCHAR(9)", [b"a"], ["a", 7]),
    ],
)
async def test_values_that_cannot_be_ids_are_named_with_the_type(
    shop: Shop, mock_clock: MockClock, type: str, bad: list[Any], good: list[Any]
) -> None:
    topic = shop.create()
    shop.run(f"ALTER TABLE mails MODIFY id {type} NOT NULL")
    for id in good:
        shop.insert(id=id)
    async with serving_tables(shop) as world, world.connect() as broker:
        for id in bad:
            with pytest.raises(InvalidRequest) as caught:
                await broker.ack_rows(topic, [id])
            said = str(caught.value)
            assert said.startswith(f"ids of {topic}: "), said
            assert f"{id!s}" in said
            assert f"the column has the type {type.lower()[:6]}" in said
        assert await broker.ack_rows(topic, good) == 2


async def test_dropped_database_ends_nothing(
    private_mysql: MysqlServer, mock_clock: MockClock
) -> None:
    private_mysql.admin("CREATE DATABASE passing")
    shop = Shop(private_mysql.url("passing"))
    topic = shop.create()
    async with serving_tables(shop) as world, world.connect() as broker:
        await world.clock.advance(seconds=1)
        async with broker.consumer(topic, "table") as consumer:
            shop.insert()
            await world.clock.advance(seconds=31)
            (message,) = await arrived(consumer)
            private_mysql.admin("DROP DATABASE passing")
            await consumer.ack(message)
            await world.clock.advance(seconds=20)
            producer = await broker.producer("t")
            await producer.send(b"x")
            private_mysql.admin("CREATE DATABASE passing")
            await world.clock.advance(seconds=20)
    private_mysql.admin("DROP DATABASE passing")
