"""Rows that cannot be sent are shown and tried again later, and the other rows are sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import trio

from escapement.broker.tables import served_table
from escapement.broker.tables.claim import MOST_ROW_BYTES
from escapement.storage.engine.base import Connection
from escapement.tables.discovery import Discovery
from escapement.tables.row_statements import RowStatements, Versions
from escapement.testing import World
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock

MIB = 1024 * 1024
REFUSE = (
    "CREATE TRIGGER refuse BEFORE UPDATE ON mails FOR EACH ROW"
    " IF NEW.tenant_id = 7 AND NEW.time_acked IS NULL"
    " THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
)


def state(world: World) -> str:
    """Return the state of the only table."""
    ((state),) = [row["state"] for row in world.server.services.tables.listed()]
    return str(state)


def insert_large(shop: Shop, size_bytes: int, count: int = 1) -> None:
    """Insert rows with values of this size in each of two columns."""
    for _ in range(count):
        shop.run(
            "INSERT INTO mails (a, b) VALUES (REPEAT('x', %s), REPEAT('y', %s))", *[size_bytes] * 2
        )


@pytest.fixture
def topic(shop: Shop) -> str:
    topic = shop.create(comment=comment(poller_interval=1, batch_size=100))
    shop.run("ALTER TABLE mails ADD COLUMN a LONGBLOB, ADD COLUMN b LONGTEXT")
    return topic


@pytest.fixture
def connection(shop: Shop) -> Iterator[Connection]:
    with closing(shop.engine.connect()) as connection:
        yield connection


async def test_row_too_large_for_a_message_is_shown_and_holds_up_no_other(
    shop: Shop, topic: str, mock_clock: MockClock
) -> None:
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        insert_large(shop, 9 * MIB)
        others = [shop.insert() for _ in range(3)]
        messages = await taken(world, consumer, seconds=3)
        assert [message.row["id"] for message in messages] == others
        await consumer.ack(messages)
        for _ in range(10):
            await world.clock.advance(seconds=2)
            assert f"row 1 has {18 * MIB:,} bytes" in state(world)
            assert f"{MOST_ROW_BYTES - 1:,}" in state(world)
        (epoch, time_next) = shop.row(1, "epoch, time_next")
        assert epoch == 1
        assert time_next > world.clock.now_ms() * 1_000_000
        for _ in range(40):  # after the back-off, it is tried again
            await world.clock.advance(seconds=1)
        assert shop.row(1, "epoch") == (2,)
        assert "row 1 has" in state(world)
        shop.run("UPDATE mails SET a = 'small', time_next = 0 WHERE id = 1")
        (message,) = await taken(world, consumer, seconds=3)
        assert message.row["a"] == b"small"
        assert len(message.row["b"]) == 9 * MIB
        assert state(world) == "ok"


async def test_problem_of_a_large_row_that_was_deleted_ends(
    shop: Shop, topic: str, mock_clock: MockClock
) -> None:
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table"),
    ):
        insert_large(shop, 9 * MIB)
        await world.clock.advance(seconds=3)
        assert "row 1 has" in state(world)
        shop.run("DELETE FROM mails")
        for _ in range(60):
            await world.clock.advance(seconds=1)
        assert state(world) == "ok"


async def test_large_rows_among_small_ones_are_sent_once(
    shop: Shop, topic: str, mock_clock: MockClock
) -> None:
    """The rows of a frame have a bounded size, although most rows are small."""
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table", permits=200) as consumer,
    ):
        shop.fill(300, tenant_id=1)
        for _ in range(5):
            await consumer.ack(await taken(world, consumer, seconds=1))
        shop.fill(40, tenant_id=1)
        insert_large(shop, 3 * MIB, count=6)
        shop.fill(40, tenant_id=1)
        sizes = []
        for _ in range(20):
            messages = await taken(world, consumer, seconds=1)
            sizes += [len(message.row["a"] or b"") for message in messages]
            await consumer.ack(messages, durable=True)
        assert sorted(sizes) == [0] * 80 + [3 * MIB] * 6
        assert shop.run("SELECT MAX(epoch), COUNT(*), COUNT(time_acked) FROM mails") == (
            (1, 386, 386),
        )


def test_claim_reads_values_of_a_bounded_size(
    shop: Shop, topic: str, connection: Connection
) -> None:
    insert_large(shop, MIB, count=7)
    statements = RowStatements(Discovery().look(connection).good["mails"])
    ids = list(range(1, 8))
    zeros = np.zeros(len(ids), np.int64)
    connection.begin()
    claimed = statements.claim(
        connection, ids, Versions(zeros, zeros, zeros + 50), zeros + 1, zeros + 5, 3 * MIB, 7 * MIB
    )
    connection.commit()
    assert (claimed.taken.tolist(), claimed.busy.tolist()) == ([0, 1, 2], [3, 4, 5, 6])
    assert all(2 * MIB < len(payload) < 2.1 * MIB for payload in claimed.payloads)
    assert [epoch for (epoch,) in shop.rows("epoch")] == [1, 1, 1, 0, 0, 0, 0]


async def test_row_that_cannot_be_updated_is_shown_and_holds_up_no_other(
    shop: Shop, topic: str, mock_clock: MockClock
) -> None:
    shop.run(REFUSE)
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        shop.fill(5, tenant_id=1)
        shop.fill(1, tenant_id=7)
        shop.fill(14, tenant_id=1)
        got = []
        for _ in range(5):
            messages = await taken(world, consumer, seconds=3)
            got += [message.row["id"] for message in messages]
            await consumer.ack(messages)
            assert "row 6 cannot be updated" in state(world)
            assert "not this one" in state(world)
        assert sorted(got) == [*range(1, 6), *range(7, 21)]
        shop.run("DROP TRIGGER refuse")
        got.clear()
        for _ in range(40):
            got += await taken(world, consumer, seconds=1)
        (message,) = got
        assert (message.row["id"], shop.row(6, "epoch")) == (6, (2,))
        assert state(world) == "ok"


async def test_refused_rows_take_no_room_from_others(shop: Shop, mock_clock: MockClock) -> None:
    """There are more refused rows than the broker keeps in memory, and they are the oldest."""
    topic = shop.create(comment=comment(poller_interval=1, batch_size=10, cache_size=20))
    shop.run(REFUSE)
    shop.fill(30, tenant_id=7)
    shop.fill(30, tenant_id=1)
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table", permits=100) as consumer,
    ):
        got = []
        for _ in range(40):
            messages = await taken(world, consumer, ms=500)
            got += [message.row["id"] for message in messages]
            await consumer.ack(messages)
        assert sorted(got) == list(range(31, 61))
        shop.run("DROP TRIGGER refuse")
        got.clear()
        for _ in range(80):
            messages = await taken(world, consumer, seconds=1)
            got += [message.row["id"] for message in messages]
            await consumer.ack(messages)
        assert sorted(got) == list(range(1, 31))
        assert state(world) == "ok"


async def test_refused_rows_in_memory_are_limited(
    shop: Shop, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_table, "_MOST_REFUSED", 15)
    topic = shop.create(comment=comment(poller_interval=1, batch_size=10, cache_size=20))
    shop.run(REFUSE)
    shop.fill(100, tenant_id=7)
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table", permits=10),
    ):
        for _ in range(60):
            await world.clock.advance(ms=500)
        table = await world.server.services.tables.find(topic)
        # Refused rows are in flight while they are tried again, and then take no room either.
        assert 20 < len(table.cached) <= 15 + 20 + 10


async def test_row_whose_trigger_uses_a_missing_table_holds_up_no_other(
    shop: Shop, mock_clock: MockClock
) -> None:
    """The error is the same as for a table that was dropped."""
    topic = shop.create(comment=comment(poller_interval=1, batch_size=20))
    shop.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON mails FOR EACH ROW"
        " IF NEW.id = 10 THEN SET NEW.tenant_id = (SELECT x FROM missing); END IF"
    )
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table", permits=100) as consumer,
    ):
        shop.fill(30, tenant_id=1)
        got = []
        for _ in range(10):
            messages = await taken(world, consumer, ms=500)
            got += [message.row["id"] for message in messages]
            await consumer.ack(messages)
        assert sorted(got) == [*range(1, 10), *range(11, 31)]
        assert "row 10 cannot be updated" in state(world)
