"""Rows of message tables are acknowledged in the transaction of a consumer."""

from __future__ import annotations

import pymysql
import pytest
import trio

from escapement import sql
from escapement.errors import AlreadyProcessed
from escapement.testing import arrived
from support.tables.shops import Shop, serving_tables

MockClock = trio.testing.MockClock


async def test_row_is_acknowledged_exactly_if_the_transaction_commits(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V7, V17."""
    topic = shop.create()
    id = shop.insert(message="1")
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        await world.clock.advance(seconds=1)
        (message,) = await arrived(consumer)
        with shop.session() as cursor:
            sql.ack(cursor, message)
            cursor.connection.rollback()
        assert shop.row(id, "time_acked") == (None,)
        await world.clock.advance(seconds=31)
        (again,) = await arrived(consumer)
        assert again.attempt == 2
        with shop.session() as cursor:
            sql.ack(cursor, [again])
            cursor.connection.commit()
        with shop.session() as cursor:
            with pytest.raises(AlreadyProcessed, match=f"row {id} of table://.*/mails"):
                sql.ack(cursor, message)
            cursor.connection.rollback()
        assert await consumer.ack(again, durable=True) == 0
        await world.clock.advance(hours=2)
        assert await arrived(consumer) == []


async def test_row_that_is_not_acknowledged_otherwise_is_forgotten(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V2: the consumer is killed right after its commit."""
    topic = shop.create()
    shop.insert(message="1")
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            await world.clock.advance(seconds=1)
            (message,) = await arrived(consumer)
            with shop.session() as cursor:
                sql.ack(cursor, message)
                cursor.connection.commit()
        async with broker.consumer(topic, "table") as consumer:
            await world.clock.advance(hours=2)
            assert await arrived(consumer) == []


async def test_only_the_rows_of_an_acknowledgement_are_locked(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: other consumers acknowledge, and producers insert, although the session locks ranges."""
    topic = shop.create()
    shop.fill(20, message="1")
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        await world.clock.advance(seconds=1)
        messages = await arrived(consumer)
        mine = [message for message in messages if message.row["id"] % 2]
        with shop.session() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            sql.ack(cursor, mine)
            free = shop.run("SELECT id FROM mails FOR UPDATE SKIP LOCKED")
            assert sorted(id for (id,) in free) == list(range(2, 21, 2))
            shop.run("INSERT INTO mails (id) VALUES (-5), (100)")
            cursor.connection.rollback()


async def test_acknowledgement_that_waits_too_long_for_a_row_changes_none(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V17: the transaction goes on after the error, as in MySQL."""
    topic = shop.create()
    shop.fill(3, message="1")
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        await world.clock.advance(seconds=1)
        messages = await arrived(consumer)
        with shop.session() as other, shop.session() as cursor:
            other.execute("SELECT * FROM mails WHERE id = 3 FOR UPDATE")
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
            with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                sql.ack(cursor, messages)
            cursor.connection.commit()
            assert shop.rows("time_acked") == ((None,),) * 3
