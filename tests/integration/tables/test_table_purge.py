"""Old acknowledged rows of message tables are deleted."""

from __future__ import annotations

import pytest
import trio

from escapement.testing import World, arrived
from support.database.accounts import account
from support.database.servers import SqlServer
from support.tables.shops import BY_DAY, COMMENT, Shop, serving_tables

MockClock = trio.testing.MockClock

DAY_MS = 86_400_000


def acked_ns(world: World, ago_ms: int) -> int:
    """Return a time some milliseconds ago, in nanoseconds since 1970."""
    return (world.clock.now_ms() - ago_ms) * 1_000_000


async def test_acknowledged_rows_are_deleted_once_they_are_old_enough(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V14."""
    topic = shop.create()
    async with serving_tables(shop) as world, world.connect() as broker:
        old = acked_ns(world, DAY_MS + 1)
        values = ", ".join([f"({old}, NULL)"] * 2_500)
        shop.run(f"INSERT INTO mails (time_acked, time_next) VALUES {values}")
        young = shop.insert(time_acked=acked_ns(world, DAY_MS - 3_600_000), time_next=None)
        with shop.session() as other:
            locked = shop.insert(time_acked=old, time_next=None)
            other.execute("SELECT * FROM mails WHERE id = %s FOR UPDATE", (locked,))
            open = shop.insert(time_next=acked_ns(world, -DAY_MS * 9))
            await world.clock.advance(seconds=31)
            assert [row[0] for row in shop.rows("id")] == [young, locked, open]
            other.connection.rollback()
        await world.clock.advance(seconds=31)
        assert [row[0] for row in shop.rows("id")] == [young, open]
        await world.clock.advance(hours=1, seconds=31)
        assert [row[0] for row in shop.rows("id")] == [open]
        async with broker.consumer(topic, "table") as consumer:
            await world.clock.advance(days=9)
            (message,) = await arrived(consumer)
            await consumer.ack(message, durable=True)
        await world.clock.advance(hours=23)
        assert len(shop.rows("id")) == 1
        await world.clock.advance(hours=1, seconds=31)
        assert not shop.rows("id")


async def test_locked_table_keeps_no_other_from_its_purge(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V14: nobody consumes the table, so no poll has found that it is locked."""
    shop.create()
    shop.create("letters")
    async with serving_tables(shop) as world:
        for name in ("mails", "letters"):
            shop.insert(name, time_acked=acked_ns(world, DAY_MS + 1), time_next=None)
        with shop.session() as session:
            session.execute("LOCK TABLES letters WRITE")
            await world.clock.advance(seconds=31)
            assert not shop.rows("id")
        await world.clock.advance(seconds=91)
        assert not shop.rows("id", "letters")


@pytest.mark.parametrize("further", ["", "LOCK TABLES"])
async def test_rows_are_deleted_if_partitions_may_not_be_dropped(
    shop: Shop, mysql_server: SqlServer, mock_clock: MockClock, further: str
) -> None:
    """V14: SELECT, UPDATE and DELETE on the table are enough, with or without its lock."""
    shop.run(BY_DAY)
    table = f"{shop.address.database}.mails"
    grants = [f"SELECT, UPDATE, DELETE ON {table}", *([further] if further else [])]
    with account(mysql_server, shop.url, *grants) as address:
        limited = Shop(shop.url)
        limited.address = address
        async with serving_tables(limited) as world:
            old = acked_ns(world, 2 * DAY_MS)
            for id, day, acked in ((1, 31, old), (2, 31, old), (3, 30, None)):
                shop.insert(id=id, day=f"2025-12-{day}", time_acked=acked, time_next=None)
            shop.insert(id=4, day="2026-01-01", time_acked=old, time_next=None)
            await world.clock.advance(seconds=31)
            assert [row[0] for row in shop.rows("id")] == [3]
            shop.run("UPDATE mails SET time_acked = %s WHERE id = 3", old)
            await world.clock.advance(seconds=31)
            assert not shop.rows("id")


async def test_whole_partitions_are_dropped(shop: Shop, mock_clock: MockClock) -> None:
    """V14: a table that is partitioned by day."""
    shop.run(BY_DAY)
    async with serving_tables(shop) as world:
        old, young = acked_ns(world, 2 * DAY_MS), acked_ns(world, 1000)
        for id, day, acked in (
            (1, "2025-12-31", old),
            (2, "2025-12-31", old),
            (3, "2026-01-01", old),
            (4, "2026-01-01", None),
            (5, "2026-01-02", young),
            (6, "2026-01-05", old),
        ):
            shop.insert(id=id, day=day, time_acked=acked, time_next=None)
        await world.clock.advance(seconds=31)
        assert [row[0] for row in shop.rows("id")] == [3, 4, 5, 6]
        shop.run("UPDATE mails SET time_acked = %s WHERE id = 4", old)
        await world.clock.advance(days=1)
        await world.clock.advance(seconds=31)
        assert [row[0] for row in shop.rows("id")] == [6]
        partitions = shop.run(
            "SELECT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_NAME = 'mails'"
            " AND TABLE_SCHEMA = DATABASE() ORDER BY PARTITION_ORDINAL_POSITION"
        )
        assert partitions == (("p4",), ("rest",))


async def test_rows_of_a_partitioned_table_are_delivered(shop: Shop, mock_clock: MockClock) -> None:
    shop.run(
        f"""CREATE TABLE mails (
            id BIGINT NOT NULL, day DATE NOT NULL, priority TINYINT NOT NULL DEFAULT 50,
            epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT,
            PRIMARY KEY (id, day), INDEX (time_acked, priority, time_next DESC)
        ) COMMENT '{COMMENT}'
        PARTITION BY RANGE COLUMNS (day) (PARTITION rest VALUES LESS THAN (MAXVALUE))"""
    )
    async with serving_tables(shop) as world, world.connect() as broker:
        name = f"table://{shop.address.database}/mails"
        async with broker.consumer(name, "table") as consumer:
            shop.insert(id=7, day="2026-12-24")
            await world.clock.advance(seconds=31)
            (message,) = await arrived(consumer)
            assert await consumer.ack(message, durable=True) == 1
