"""Which row goes first, to which consumer, and in which frames."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

import pytest
import trio

import escapement
from escapement.client.consuming.batch import Message
from escapement.testing import arrived
from escapement.testing.clock import START_MS
from escapement.traits import SLOTS
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock

HALF: Final = SLOTS // 2


async def test_backlog_of_many_caches_drains_without_waiting_for_polls(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: the rows come in the order in which they were created."""
    topic = shop.create(comment=comment(cache_size=50, poller_interval=30))
    shop.fill(500, tenant_id=1)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            ids: list[int] = []
            while len(ids) < 500:
                messages = await taken(world, consumer, ms=20)
                ids += [message.row["id"] for message in messages]
                await consumer.ack(messages, durable=True)
                assert world.clock.lease_ms() < 2_000
            assert ids == list(range(1, 501))


@pytest.mark.parametrize("acks", [True, False])
async def test_backlog_drains_through_consumers_with_few_permits(
    shop: Shop, mock_clock: MockClock, acks: bool
) -> None:
    """V9: also if rows of one cache are in flight for long."""
    topic = shop.create(comment=comment(cache_size=5, poller_interval=30))
    shop.fill(60, tenant_id=1)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=3) as consumer:
            ids: list[int] = []
            while len(ids) < 60:
                message = await consumer.receive(0)
                if message is None:
                    await world.clock.advance(ms=20)
                    assert world.clock.lease_ms() < 4_000
                    continue
                ids.append(message.row["id"])
                if acks:
                    await consumer.ack([message], durable=True)
            assert ids == list(range(1, 61))


async def test_cache_holds_no_more_rows_than_its_size(shop: Shop, mock_clock: MockClock) -> None:
    """V9."""
    topic = shop.create(comment=comment(cache_size=7, poller_interval=1))
    shop.fill(50, tenant_id=1)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=4):
            await world.clock.advance(seconds=10)
            (database,) = world.server.services.tables.databases.values()
            (table,) = database._tables.values()
            assert table.waiting == 7
            table.cached._check()


async def test_rows_that_wait_for_their_retries_keep_no_room_from_due_ones(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: a broker forgets rows that are due after its next poll."""
    topic = shop.create(comment=comment(cache_size=3, poller_interval=1))
    shop.fill(12, tenant_id=1)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            failed = []
            while len(failed) < 12:
                failed += await taken(world, consumer, ms=50)
            await consumer.nack(failed, timedelta(minutes=2))
            await world.clock.advance(seconds=1)
            (database,) = world.server.services.tables.databases.values()
            (table,) = database._tables.values()
            assert len(table.cached) == 0
            id = shop.insert()
            (message,) = await taken(world, consumer, seconds=2)
            assert message.row["id"] == id
            await consumer.ack([message], durable=True)
            assert await taken(world, consumer, seconds=116) == []
            again = []
            for _ in range(25):
                again += await taken(world, consumer, ms=100)
            assert {message.row["id"] for message in again} == set(range(1, 13))


async def test_rows_that_are_due_soon_keep_no_room_from_due_ones(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: and those that found no room are sent at their times."""
    topic = shop.create(comment=comment(cache_size=3, poller_interval=30))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            for _ in range(12):  # until polls are rare
                await world.clock.advance(seconds=30)
            soon_ms = world.clock.now_ms() + 50_000
            shop.fill(10, time_next=soon_ms * 1_000_000)
            await world.clock.advance(seconds=30)
            id = shop.insert()
            (message,) = await taken(world, consumer, seconds=1)
            assert message.row["id"] == id
            assert await taken(world, consumer, ms=soon_ms - 1 - world.clock.now_ms()) == []
            found = []
            for _ in range(6):
                found += await taken(world, consumer, ms=100)
            assert {message.row["id"] for message in found} == set(range(1, 11))


async def test_row_is_sent_at_its_time_while_others_in_flight_have_earlier_deadlines(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: the rows in flight, which the polls find first, are more than the cache has room for."""
    topic = shop.create(comment=comment(cache_size=10, ack_wait=3, poller_interval=0.7))
    shop.fill(200, tenant_id=0)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=1_000) as consumer:
            found: list[Message] = []
            while len(found) < 200:
                found += await taken(world, consumer, ms=20)
            sent_ms = world.clock.now_ms()
            for deadline_ms in range(sent_ms + 3_000, sent_ms + 12_000, 3_000):
                for due_ms in range(deadline_ms + 50, deadline_ms + 500, 50):
                    shop.insert(tenant_id=due_ms, time_next=due_ms * 1_000_000)
            late_ms = []
            while len(late_ms) < 27:
                for message in await taken(world, consumer, ms=20):
                    due_ms = message.row["tenant_id"]
                    if due_ms:
                        late_ms.append(world.clock.now_ms() - due_ms)
                        await consumer.ack([message])
            assert max(late_ms) <= 100


async def test_locked_rows_whose_deadlines_have_passed_keep_no_room_from_due_ones(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: acknowledgements of rows that an application has locked wait until it unlocks them."""
    topic = shop.create(comment=comment(cache_size=10, ack_wait=2, poller_interval=60))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=100) as consumer:
            shop.fill(10, tenant_id=1)
            messages = await taken(world, consumer, seconds=1)
            assert len(messages) == 10
            with shop.session() as session:
                session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                session.execute("SELECT id FROM mails FOR UPDATE")
                await consumer.ack(messages)
                for _ in range(12):  # until polls are rare
                    await world.clock.advance(seconds=30)
                soon_ms = world.clock.now_ms() + 100_000
                shop.fill(10, tenant_id=2, time_next=soon_ms * 1_000_000)
                (database,) = world.server.services.tables.databases.values()
                (table,) = database._tables.values()
                while table.waiting < 10 and world.clock.now_ms() < soon_ms:
                    await world.clock.advance(seconds=1)
                waiting = table.waiting
                id = shop.insert()
                broker.hint(f"{shop.address.database}.mails")
                found = await taken(world, consumer, seconds=1)
            await world.clock.advance(seconds=5)
            assert waiting == 10
            assert [message.row["id"] for message in found] == [id]


async def test_row_of_a_high_priority_is_sent_before_older_ones(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V5: lower numbers go first, and old rows before newer ones of the same priority."""
    topic = shop.create()
    rows = [(50, 10), (51, 5), (0, 30), (7, 40), (127, 1), (50, 9), (0, 20), (50, 0)]
    first_ns = (START_MS - 1000) * 1_000_000
    ids = [
        shop.insert(priority=priority, time_next=first_ns + time * 1_000_000)
        for priority, time in rows
    ]
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            messages = await taken(world, consumer, seconds=3)
            order = [rows[ids.index(message.row["id"])] for message in messages]
            assert order == sorted(rows)


async def test_high_priorities_do_not_starve_a_low_one(shop: Shop, mock_clock: MockClock) -> None:
    """V5: the cache has room for few rows, and urgent ones never end."""
    topic = shop.create(comment=comment(cache_size=10, poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=2) as consumer:
            shop.fill(30, priority=1)
            await world.clock.advance(ms=500)
            patient = shop.insert(priority=120)
            for _ in range(600):
                shop.fill(2, priority=1)
                await world.clock.advance(seconds=1)
                messages = [await consumer.receive(0), await consumer.receive(0)]
                found = [message for message in messages if message is not None]
                await consumer.ack(found, durable=True)
                if any(message.row["id"] == patient for message in found):
                    return
            raise AssertionError("the row of a low priority starves")


@pytest.mark.parametrize("time_next", [0, (START_MS - 3_600_000) * 1_000_000], ids=["now", "old"])
@pytest.mark.parametrize(("priorities", "cache_size", "rate"), [(20, 5, 4), (300, 10_000, 1_000)])
async def test_old_row_of_the_lowest_of_many_priorities_does_not_starve(
    shop: Shop, mock_clock: MockClock, priorities: int, cache_size: int, rate: int, time_next: int
) -> None:
    """V5: more priorities are in use than the cache has room for, or a poll looks for."""
    topic = shop.create(comment=comment(cache_size=cache_size, poller_interval=1))
    shop.run("ALTER TABLE mails MODIFY COLUMN priority INT NOT NULL")
    urgent = range(1, priorities)

    def refill() -> None:
        """Add a due row of each other priority."""
        due_ns = time_next and world.clock.now_ms() * 1_000_000
        marks = ", ".join(["(%s, %s)"] * len(urgent))
        values = [value for priority in urgent for value in (priority, due_ns)]
        shop.run(f"INSERT INTO mails (priority, time_next) VALUES {marks}", *values)

    async with serving_tables(shop) as world, world.connect() as broker:
        refill()
        async with broker.consumer(topic, "table", permits=rate) as consumer:
            await world.clock.advance(ms=500)
            patient = shop.insert(priority=priorities, time_next=time_next)
            for _ in range(300):
                refill()
                await world.clock.advance(seconds=1)
                received = [await consumer.receive(0) for _ in range(rate)]
                found = [message for message in received if message is not None]
                await consumer.ack(found, durable=True)
                if any(message.row["id"] == patient for message in found):
                    return
            raise AssertionError("the row of the lowest priority starves")


async def test_priorities_that_are_not_in_use_any_more_are_forgotten(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: polls have branches for priorities in use only."""
    topic = shop.create(comment=comment(poller_interval=1))
    for priority in range(40):
        shop.insert(priority=priority)
    later = shop.insert(priority=90, time_next=(START_MS + 10_000_000) * 1_000_000)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            found = await taken(world, consumer, seconds=2)
            assert len(found) == 40
            (database,) = world.server.services.tables.databases.values()
            (table,) = database._tables.values()
            assert table.priorities.all == (*range(40), 90)
            await consumer.ack(found, durable=True)
            await world.clock.advance(seconds=40)
            assert table.priorities.all == (90,)
            shop.run("UPDATE mails SET time_next = 0 WHERE id = %s", later)
            new = shop.insert(priority=3)
            messages = await taken(world, consumer, seconds=2)
            assert [message.row["id"] for message in messages] == [new, later]


async def test_two_consumers_take_turns(shop: Shop, mock_clock: MockClock) -> None:
    """V6: each row goes to one of them."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with (
            broker.consumer(topic, "table") as one,
            broker.consumer(topic, "table") as other,
        ):
            for count in (1, 1, 40, 1, 1):
                shop.fill(count, tenant_id=count)
                await world.clock.advance(seconds=3)
            found = [Counter(m.row["id"] for m in await arrived(inbox)) for inbox in (one, other)]
            assert [sum(counter.values()) for counter in found] == [22, 22]
            assert sorted([*found[0], *found[1]]) == list(range(1, 45))


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
async def test_batch_size_bounds_the_rows_of_a_frame(
    shop: Shop, mock_clock: MockClock, batch_size: int
) -> None:
    """V9."""
    topic = shop.create(comment=comment(batch_size=batch_size))
    shop.fill(20, tenant_id=1)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            await world.clock.advance(seconds=1)
            sizes: list[int] = []
            while sum(sizes) < 20:
                sizes.append(len(await anext(consumer.batches())))
            assert sum(sizes) == 20
            assert max(sizes) == min(batch_size, 20)


async def test_row_goes_to_no_consumer_while_another_has_it(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V6: a consumer that joins gets the rows of one that leaves, and nothing before."""
    topic = shop.create()
    id = shop.insert()
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as one:
            assert len(await taken(world, one, seconds=1)) == 1
            async with broker.consumer(topic, "table") as other:
                assert await taken(world, other, seconds=28) == []
        async with broker.consumer(topic, "table") as other:
            (message,) = await taken(world, other, ms=20)
            assert (message.row["id"], message.redelivered) == (id, True)
            assert shop.row(id, "epoch") == (2,)


async def test_key_ranges_divide_the_rows_by_the_key_column(
    shop: Shop, mock_clock: MockClock
) -> None:
    """Q3: by the id if the table has no directive."""
    topics = {
        "id": shop.create("mails", comment(message_cols="id|message")),
        "tenant_id": shop.create(
            "texts", comment(key_column="tenant_id", message_cols="id|tenant_id|message")
        ),
    }
    for name in ("mails", "texts"):
        for number in range(40):
            shop.insert(name, tenant_id=number % 7, message="[]")
    async with serving_tables(shop) as world, world.connect() as broker:
        for column, topic in topics.items():
            async with (
                broker.consumer(topic, "table", key_range=(0, HALF - 1)) as low,
                broker.consumer(topic, "table", key_range=(HALF, SLOTS - 1)) as high,
            ):
                await world.clock.advance(seconds=3)
                found = []
                for inbox, slots in ((low, range(HALF)), (high, range(HALF, SLOTS))):
                    messages = await arrived(inbox)
                    found += [message.row["id"] for message in messages]
                    for message in messages:
                        assert escapement.slot_of(message.key) in slots
                        assert message.key is not None
                        if column in message.row:
                            assert message.key == str(message.row[column])
                assert sorted(found) == list(range(1, 41))
                fields = [inbox.fields for inbox in (low, high) if inbox.fields is not None]
                names = {field.name for field in fields[0]}
                assert names == {"id", "message", column}
