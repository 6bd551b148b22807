"""Applications change rows by SQL while a broker has them in memory.

Rows *wait* in memory when they are due soon, or when their consumers have no permits left. Rows
*in flight* were sent and are not acknowledged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import pytest
import trio

from escapement import NotFound
from escapement.broker.tables.served_table import ServedTable
from escapement.client.broker import Broker
from escapement.client.consuming.inbox import Inbox
from escapement.testing import World, arrived
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock

NS: Final = 1_000_000
LATER: Final = "time_next = time_next + 100000000000"
# A message is sent this long after its time, at most: a tick, and a poll.
LATE_MS: Final = 550


class Setting(NamedTuple):
    """A broker with one consumer of a table."""

    shop: Shop
    world: World
    broker: Broker
    consumer: Inbox
    topic: str

    @property
    def served(self) -> ServedTable:
        (database,) = self.world.server.services.tables.databases.values()
        (table,) = database._tables.values()
        return table

    def change(self, what: str, *ids: int) -> None:
        self.shop.run(f"UPDATE mails SET {what} WHERE id IN ({', '.join(map(str, ids))})")

    async def ack_rows(self, ids: Sequence[int]) -> int:
        return await self.world.server.services.tables.acknowledge(self.topic, ids)

    async def ids(self, **time: float) -> list[int]:
        return [message.row["id"] for message in await taken(self.world, self.consumer, **time)]


@asynccontextmanager
async def setting(shop: Shop, permits: int = 1000, **directives: object) -> AsyncIterator[Setting]:
    topic = shop.create(comment=comment(**directives))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=permits) as consumer:
            yield Setting(shop, world, broker, consumer, topic)


@asynccontextmanager
async def waiting(shop: Shop, count: int = 3) -> AsyncIterator[tuple[Setting, list[int]]]:
    """Provide rows that are in memory and due in 5 seconds."""
    async with setting(shop) as now:
        for _ in range(20):  # until polls are rare
            await now.world.clock.advance(seconds=30)
        due_ns = (now.world.clock.now_ms() + 35_000) * NS
        ids = [shop.insert(time_next=due_ns) for _ in range(count)]
        await now.world.clock.advance(seconds=30)
        assert len(now.served.cached) == count
        yield now, ids


async def test_waiting_row_that_is_acknowledged_is_not_sent(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: an application acknowledges with an UPDATE."""
    async with waiting(shop) as (now, ids):
        now.change("time_acked = 1, time_next = NULL", ids[1])
        assert await now.ids(seconds=10) == [ids[0], ids[2]]
        assert shop.row(ids[1], "epoch, time_next, time_acked") == (0, None, 1)


async def test_waiting_row_that_is_deleted_is_not_sent(shop: Shop, mock_clock: MockClock) -> None:
    """V8."""
    async with waiting(shop) as (now, ids):
        shop.run("DELETE FROM mails WHERE id = %s", ids[1])
        assert await now.ids(seconds=10) == [ids[0], ids[2]]
        assert len(now.served.cached) == 2


async def test_waiting_row_that_is_put_off_is_sent_at_its_new_time(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8."""
    async with waiting(shop) as (now, ids):
        now.change(LATER, ids[1])
        others = await taken(now.world, now.consumer, seconds=10)
        assert [message.row["id"] for message in others] == [ids[0], ids[2]]
        assert await now.consumer.ack(others, durable=True) == 2
        assert shop.row(ids[1], "epoch") == (0,)
        assert await now.ids(seconds=94) == []
        assert await now.ids(ms=1000 + LATE_MS) == [ids[1]]


async def test_waiting_row_that_is_advanced_is_sent_at_the_next_poll(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8."""
    async with setting(shop, poller_interval=1) as now:
        due_ns = (now.world.clock.now_ms() + 5_000) * NS
        ids = [shop.insert(time_next=due_ns) for _ in range(2)]
        await now.world.clock.advance(ms=3_900)
        now.change("time_next = 0", ids[1])
        assert await now.ids(ms=1_000) == [ids[1]]
        assert await now.ids(ms=120) == [ids[0]]


async def test_waiting_row_gets_another_priority(shop: Shop, mock_clock: MockClock) -> None:
    """V5, V8: the broker has all rows in memory, and the consumer has no permit."""
    async with setting(shop, permits=1, poller_interval=1) as now:
        ids = [shop.insert(time_next=at) for at in range(1, 7)]
        await now.world.clock.advance(seconds=5)
        assert len(now.served.cached) == 6
        sent = {id for id, epoch in shop.rows("id, epoch") if epoch}
        now.change("priority = 7", ids[4])
        now.change("priority = 90", ids[2])
        await now.world.clock.advance(seconds=5)
        order = []
        for _ in ids:
            message = await now.consumer.receive(0)
            order.append(message.row["id"])
            await now.consumer.ack([message], durable=True)
            await now.world.clock.advance(ms=100)
        first = [id for id in ids if id in sent]
        others = [id for id in (ids[4], *ids[:2], ids[3], ids[5], ids[2]) if id not in sent]
        assert order == first + others
        assert 1 <= len(first) <= 2


async def test_waiting_row_gets_another_epoch(shop: Shop, mock_clock: MockClock) -> None:
    """V4, V8: the back-off follows the epoch in the table."""
    async with waiting(shop) as (now, ids):
        now.change("epoch = 3", ids[1])
        assert sorted(await now.ids(seconds=10)) == ids
        sent_ms = now.world.clock.now_ms() - 5_000
        epoch, time_next = shop.row(ids[1], "epoch, time_next")
        assert epoch == 4
        assert 240_000 <= time_next // NS - sent_ms <= 325_000


@pytest.mark.parametrize("ack", ["time_acked = 1, time_next = NULL", None])
async def test_row_in_flight_that_ends_is_not_sent_again(
    shop: Shop, mock_clock: MockClock, ack: str | None
) -> None:
    """V8: a row in flight is acknowledged by an UPDATE, or deleted."""
    async with setting(shop) as now:
        id = shop.insert()
        assert await now.ids(seconds=31) == [id]
        if ack is None:
            shop.run("DELETE FROM mails")
        else:
            now.change(ack, id)
        assert await now.ids(hours=1) == []
        assert len(now.served.cached) == 0


async def test_row_in_flight_that_is_put_off_is_sent_at_its_new_time(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8."""
    async with setting(shop) as now:
        id = shop.insert()
        assert await now.ids(seconds=31) == [id]
        now.change(LATER, id)
        (time_next,) = shop.row(id, "time_next")
        assert await now.ids(ms=time_next // NS - now.world.clock.now_ms() - 1) == []
        assert await now.ids(ms=30 + LATE_MS) == [id]
        assert shop.row(id, "epoch") == (2,)


async def test_row_in_flight_that_is_advanced_is_sent_at_the_next_poll(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: rows whose deliveries failed for long are sent again soon, at the wish of an operator."""
    async with setting(shop, poller_interval=1) as now:
        id = shop.insert(epoch=20)
        other = shop.insert(epoch=20)
        assert await now.ids(seconds=31) == [id, other]
        now.change("time_next = 0, epoch = 0", id)
        assert await now.ids(seconds=2) == [id]
        epoch, time_next = shop.row(id, "epoch, time_next")
        assert epoch == 1
        wait_ms = time_next // NS - now.world.clock.now_ms()
        assert 27_900 <= wait_ms <= 30_000
        assert await now.ids(ms=wait_ms - 1) == []
        assert await now.ids(ms=12) == [id]


async def test_row_in_flight_with_another_priority_or_epoch_keeps_its_deadline(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: a consumer may still acknowledge it until then."""
    async with setting(shop, poller_interval=1) as now:
        ids = [shop.insert() for _ in range(3)]
        first = await taken(now.world, now.consumer, seconds=31)
        (time_next,) = shop.row(ids[0], "time_next")
        now.change("priority = 3, epoch = 7", *ids)
        wait_ms = time_next // NS - now.world.clock.now_ms()
        assert await now.ids(ms=wait_ms - 50) == []
        assert await now.consumer.ack([first[0]], durable=True) == 1
        assert await now.ids(ms=49) == []
        assert await now.ids(ms=LATE_MS) == ids[1:]
        assert shop.rows("epoch, priority") == ((7, 3), (8, 3), (8, 3))


async def test_row_in_flight_is_acknowledged_after_a_change(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: an acknowledgement counts whatever has happened to the other columns."""
    async with setting(shop) as now:
        ids = [shop.insert() for _ in range(4)]
        messages = await taken(now.world, now.consumer, seconds=31)
        now.change(LATER, ids[0])
        now.change("priority = 1", ids[1])
        now.change("message = '[]'", ids[2])
        now.change("time_acked = 5, time_next = NULL", ids[3])
        await now.world.clock.advance(seconds=10)
        # The last row was acknowledged already.
        assert await now.consumer.ack(messages, durable=True) == 3
        acked_ns = now.world.clock.now_ms() * NS
        assert shop.rows("time_next, time_acked") == ((None, acked_ns),) * 3 + ((None, 5),)
        assert await now.ids(hours=1) == []


async def test_locked_row_waits_for_the_application_and_delays_no_other(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: the application has changed a row in a transaction that is open."""
    async with waiting(shop) as (now, ids):
        with shop.session() as cursor:
            cursor.execute("UPDATE mails SET message = '[1]' WHERE id = %s", (ids[1],))
            assert await now.ids(seconds=6) == [ids[0], ids[2]]
            assert await now.ids(seconds=2) == []
            cursor.connection.commit()
        (message,) = await taken(now.world, now.consumer, ms=1_010)
        assert (message.row["id"], message.row["message"]) == (ids[1], [1])
        assert shop.row(ids[1], "epoch") == (1,)


@pytest.mark.parametrize(
    "read",
    [
        "SELECT * FROM mails WHERE id = 2",
        "SELECT * FROM mails WHERE id BETWEEN 2 AND 2",
    ],
)
async def test_serializable_reads_delay_only_the_rows_that_they_lock(
    shop: Shop, mock_clock: MockClock, read: str
) -> None:
    """V8: rows of other tables, and other rows of this one, are sent and acknowledged."""
    topics = [shop.create(name) for name in ("mails", "texts")]
    for name in ("mails", "texts"):
        for priority in (50, 7, 50):
            shop.insert(name, priority=priority)
    with shop.session() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        cursor.execute(read)
        assert len(cursor.fetchall()) == 1
        async with (
            serving_tables(shop) as world,
            world.connect() as broker,
            broker.consumer(topics[0], "table") as mails,
            broker.consumer(topics[1], "table") as texts,
        ):
            others = await taken(world, texts, seconds=5)
            assert {message.row["id"] for message in others} == {1, 2, 3}
            assert await texts.ack(others, durable=True) == 3
            found = await arrived(mails)
            assert sorted(message.row["id"] for message in found) == [1, 3]
            assert await mails.ack(found, durable=True) == 2
            cursor.connection.commit()
            (last,) = await taken(world, mails, seconds=2)
            assert last.row["id"] == 2


async def test_locks_on_a_range_of_the_index_delay_no_other_table(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: a serializable read locks no row, but the index in which the broker moves rows."""
    topics = [shop.create(name) for name in ("mails", "texts")]
    for name in ("mails", "texts"):
        shop.fill(3, name, tenant_id=1)
    with shop.session() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        cursor.execute("SELECT id FROM mails FORCE INDEX (poller_idx) WHERE time_acked IS NULL")
        async with (
            serving_tables(shop) as world,
            world.connect() as broker,
            broker.consumer(topics[0], "table") as mails,
            broker.consumer(topics[1], "table") as texts,
        ):
            others = await taken(world, texts, seconds=10)
            assert len(others) == 3
            assert await texts.ack(others, durable=True) == 3
            cursor.connection.commit()
            await world.clock.advance(seconds=30)
            assert len(await arrived(mails)) == 3


async def test_locked_row_is_acknowledged_and_retried_when_it_is_unlocked(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: nothing waits for the lock, and the statements of the application do not fail."""
    async with setting(shop) as now:
        ids = [shop.insert() for _ in range(3)]
        messages = await taken(now.world, now.consumer, seconds=31)
        acks: list[int | None] = []

        async def ack() -> None:
            acks.append(await now.consumer.ack(messages[:2], durable=True))

        with shop.session() as cursor:
            cursor.execute("UPDATE mails SET tenant_id = 1 WHERE id IN (%s, %s)", (ids[0], ids[2]))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ack)
                await now.consumer.nack([messages[2]], "5s")
                await now.world.clock.advance(seconds=6)
                assert acks == []
                assert [row[0] is None for row in shop.rows("time_acked")] == [True, False, True]
                assert await arrived(now.consumer) == []  # the retry of the last row waits too
                cursor.connection.commit()
                await now.world.clock.advance(seconds=1)
        assert acks == [2]
        assert await now.ids(seconds=1) == [ids[2]]
        assert shop.row(ids[2], "epoch") == (2,)


async def test_rows_are_acknowledged_by_their_ids(shop: Shop, mock_clock: MockClock) -> None:
    """V9: in flight, in memory, only in the table, acknowledged already, and unknown."""
    async with setting(shop, permits=2) as now:
        in_flight, waits = (shop.insert(time_next=at) for at in (1, 3))
        other = shop.insert(time_next=2)
        await now.world.clock.advance(seconds=31)
        future = shop.insert(time_next=(1 << 63) - 1)
        acked = shop.insert(time_next=None, time_acked=7)
        ids = [in_flight, waits, future, acked, 1 << 40, in_flight]
        assert await now.ack_rows(ids) == 3
        assert await now.ack_rows(ids) == 0
        acked_ns = now.world.clock.now_ms() * NS
        for id in (in_flight, waits, future):
            assert shop.row(id, "time_next, time_acked") == (None, acked_ns)
        assert shop.row(acked, "time_next, time_acked") == (None, 7)
        first = [message.row["id"] for message in await arrived(now.consumer)]
        assert first == [in_flight, other]
        assert set(await now.ids(hours=1)) == {other}
        with pytest.raises(NotFound):
            await now.world.server.services.tables.acknowledge(now.topic + "s", [1])
