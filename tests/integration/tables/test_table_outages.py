"""Read-only databases, lost servers, and brokers that stop, crash and start again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
import trio

from escapement import StorageReadOnly, StorageUnavailable
from escapement.testing import World, arrived
from support.database.servers import MysqlServer
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock

NS = 1_000_000
# A client has connected again after this time.
CONNECTED_S = 25


@pytest.fixture
def shop_to_break(mysql_to_break: MysqlServer) -> Iterator[Shop]:
    """A shop whose broker connects as an ordinary user, on a server that may be broken."""
    mysql_to_break.admin("CREATE DATABASE breaking")
    mysql_to_break.admin("CREATE USER breaker@'%' IDENTIFIED BY 'x'")
    mysql_to_break.admin("GRANT ALL ON breaking.* TO breaker@'%'")
    yield Shop(mysql_to_break.url("breaking"))
    mysql_to_break.restore()
    mysql_to_break.admin("SET GLOBAL read_only = 0")
    mysql_to_break.admin("DROP DATABASE breaking")
    mysql_to_break.admin("DROP USER breaker@'%'")


def as_broker(shop: Shop) -> Shop:
    """Return the same shop as an ordinary user sees it."""
    other = Shop(shop.url)
    other.address = replace(shop.address, user="breaker", password="x")
    return other


async def test_read_only_database_stops_deliveries_and_refuses_acknowledgements(
    shop_to_break: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock
) -> None:
    """V9: nothing is lost, and the broker goes on by itself."""
    shop = shop_to_break
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(as_broker(shop)) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            shop.fill(2, tenant_id=1)
            messages = await taken(world, consumer, seconds=2)
            assert len(messages) == 2
            mysql_to_break.admin("SET GLOBAL read_only = 1")
            later = shop.insert()
            assert await taken(world, consumer, seconds=9) == []
            assert shop.row(later, "epoch, time_next") == (0, 0)
            # Clients send acknowledgements again after this error.
            with pytest.raises(StorageReadOnly) as caught:
                await world.server.services.tables.acknowledge(topic, [messages[1].row["id"]])
            assert caught.value.retryable
            acks: list[int | None] = []

            async def ack() -> None:
                acks.append(await consumer.ack(messages, durable=True))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ack)
                await world.clock.advance(seconds=5)
                assert acks == []
                assert set(shop.rows("time_acked")) == {(None,)}
                mysql_to_break.admin("SET GLOBAL read_only = 0")
                for _ in range(100):
                    await world.clock.advance(ms=100)
            assert acks == [2]
            (message,) = await arrived(consumer)
            assert message.row["id"] == later


async def test_first_acknowledgement_by_ids_on_a_read_only_server_is_refused(
    shop_to_break: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock
) -> None:
    """The broker learns only from this acknowledgement that the server accepts no writes."""
    shop = shop_to_break
    shop.create()
    ids = [shop.insert() for _ in range(2)]
    async with serving_tables(as_broker(shop)) as world, world.connect() as broker:
        await world.clock.advance(seconds=2)
        mysql_to_break.admin("SET GLOBAL read_only = 1")
        errors: list[StorageReadOnly] = []

        async def ack() -> None:
            with pytest.raises(StorageReadOnly) as caught:
                await broker.ack_rows("breaking.mails", ids)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ack)
            await world.clock.advance(seconds=2)
            nursery.cancel_scope.cancel()
        assert [error.retryable for error in errors] == [True]
        assert set(shop.rows("time_acked")) == {(None,)}
        mysql_to_break.admin("SET GLOBAL read_only = 0")
        for _ in range(50):
            await world.clock.advance(ms=100)
        assert await broker.ack_rows("breaking.mails", ids) == 0
        assert None not in {acked for (acked,) in shop.rows("time_acked")}


async def test_acknowledgement_of_a_locked_row_is_answered_in_time_with_the_reason(
    shop_to_break: Shop, mock_clock: MockClock
) -> None:
    shop = shop_to_break
    shop.create()
    id = shop.insert()
    errors: list[StorageUnavailable] = []
    async with serving_tables(as_broker(shop)) as world, world.connect() as broker:
        await world.clock.advance(seconds=2)

        async def ack() -> None:
            with pytest.raises(StorageUnavailable) as caught:
                await broker.ack_rows("breaking.mails", [id])
            errors.append(caught.value)

        with shop.session() as cursor:
            cursor.execute("SELECT 1 FROM mails WHERE id = %s FOR UPDATE", (id,))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ack)
                for _ in range(29):
                    await world.clock.advance(seconds=1)
                (error,) = errors
            assert "other sessions have locked rows" in str(error)
            assert "may still be acknowledged" in str(error)
        for _ in range(5):
            await world.clock.advance(seconds=1)
        assert shop.row(id, "time_acked IS NULL") == (0,)


async def test_locked_rows_are_tried_together_and_hold_up_no_other(
    shop_to_break: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock
) -> None:
    """Another session locks many rows for a time, while they are acknowledged one by one."""
    shop = shop_to_break
    topic = shop.create(comment=comment(poller_interval=1))
    ids = [shop.insert() for _ in range(50)]
    shop.fill(2, tenant_id=7)
    counts: list[int] = []

    def statements() -> int:
        return int(mysql_to_break.admin("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])

    async with (
        serving_tables(as_broker(shop)) as world,
        world.connect() as broker,
        broker.consumer(topic, "table", permits=100) as consumer,
    ):
        await world.clock.advance(seconds=2)
        messages = await arrived(consumer)
        assert len(messages) == 52
        nacked = [message for message in messages if message.row["id"] in ids[48:]]
        good = [message for message in messages if message.row["tenant_id"] == 7]

        async def ack(id: int) -> None:
            counts.append(await broker.ack_rows(topic, [id]))

        async with trio.open_nursery() as nursery:
            with shop.session() as cursor:
                for id in ids:
                    cursor.execute("SELECT 1 FROM mails WHERE id = %s FOR UPDATE", (id,))
                for id in [*ids[:48], *ids[:2]]:
                    nursery.start_soon(ack, id)
                for message in nacked:
                    await consumer.nack([message], timedelta(seconds=1))
                    await world.clock.advance(ms=10)
                for _ in range(40):
                    await world.clock.advance(ms=100)
                before = statements()
                for _ in range(40):
                    await world.clock.advance(ms=100)
                executed = statements() - before
                counts_then = list(counts)
                # The clock stands still, so this waits for no pause.
                assert await consumer.ack(good, durable=True) == 2
            for _ in range(25):
                await world.clock.advance(ms=100)
        assert executed < 80
        assert counts_then == [0] * 2  # the rows of the last two are acknowledged already
        assert sorted(counts) == [0] * 2 + [1] * 48
        assert shop.run("SELECT COUNT(*) FROM mails WHERE time_acked IS NULL") == ((2,),)
        again = await taken(world, consumer, seconds=3)
        assert {message.row["id"] for message in again} == {m.row["id"] for m in nacked}


@pytest.mark.parametrize("kind", ["kill", "stop"])
async def test_broker_goes_on_when_the_server_of_the_table_is_back(
    shop_to_break: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock, kind: str
) -> None:
    """V9: acknowledgements of the time in between are written then."""
    shop = shop_to_break
    topic = shop.create(comment=comment(poller_interval=1))
    shop.fill(4, tenant_id=1)
    async with serving_tables(as_broker(shop)) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=10) as consumer:
            messages = await taken(world, consumer, seconds=1)
            assert len(messages) == 4
            getattr(mysql_to_break, kind)()
            acks: list[int | None] = []

            async def ack() -> None:
                acks.append(await consumer.ack(messages[:2], durable=True))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ack)
                await world.clock.advance(seconds=5)
                await consumer.nack(messages[2:3], timedelta(seconds=1))
                await world.clock.advance(seconds=5)
                assert acks == []
                mysql_to_break.start()
                for _ in range(50):  # waits of the broker end one after the other
                    await world.clock.advance(ms=100)
            assert acks == [2]
            assert [acked is None for (acked,) in shop.rows("time_acked")][:2] == [False, False]
            found = {message.row["id"] for message in await arrived(consumer)}
            assert 3 in found
            assert await consumer.ack(messages, durable=True) == 2
            id = shop.insert()
            (message,) = await taken(world, consumer, seconds=2)
            assert message.row["id"] == id


async def test_extended_row_stays_with_its_consumer_and_in_the_table(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V4: time_next follows the ack deadline."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            id = shop.insert()
            messages = await taken(world, consumer, seconds=2)
            await consumer.extend(messages, timedelta(seconds=100))
            until_ms = world.clock.now_ms() + 100_000
            assert await taken(world, consumer, ms=50) == []
            assert shop.row(id, "epoch, time_next") == (1, until_ms * NS)
            assert await taken(world, consumer, ms=99_940) == []
            (again,) = await taken(world, consumer, ms=30)
            assert shop.row(id, "epoch") == (2,)
            assert await consumer.ack([again], durable=True) == 1


@pytest.mark.parametrize(("delay_s", "least_s", "most_s"), [(None, 30, 40), (0, 0, 0), (7, 7, 7)])
async def test_nacked_row_is_sent_again_after_the_delay(
    shop: Shop, mock_clock: MockClock, delay_s: int | None, least_s: int, most_s: int
) -> None:
    """V4: without a delay, after the back-off of its epoch."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            id = shop.insert()
            messages = await taken(world, consumer, seconds=2)
            delay = None if delay_s is None else timedelta(seconds=delay_s)
            await consumer.nack(messages, delay)
            sent_ms = world.clock.now_ms()
            if most_s > 1:
                await world.clock.advance(ms=20)
                epoch, time_next = shop.row(id, "epoch, time_next")
                assert epoch == 1
                wait_ms = time_next // NS - sent_ms
                assert least_s * 1000 <= wait_ms <= most_s * 1000
                assert await taken(world, consumer, ms=wait_ms - 21) == []
            (again,) = await taken(world, consumer, ms=12)
            assert again.row["id"] == id
            assert shop.row(id, "epoch") == (2,)


async def test_row_that_is_extended_and_then_nacked_is_sent_after_the_delay(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V4: both wait to be written, and the second follows from the first."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            id = shop.insert()
            messages = await taken(world, consumer, seconds=2)
            with shop.session() as cursor:  # so nothing is written yet
                cursor.execute("SELECT 1 FROM mails WHERE id = %s FOR UPDATE", (id,))
                await consumer.extend(messages, timedelta(seconds=100))
                await consumer.extend(messages, timedelta(seconds=200))
                await consumer.nack(messages, timedelta(seconds=5))
                await world.clock.advance(seconds=1)
                cursor.connection.commit()
            until_ms = world.clock.now_ms() + 4_000
            assert await taken(world, consumer, ms=3_990) == []
            assert shop.row(id, "epoch, time_next") == (1, until_ms * NS)
            (again,) = await taken(world, consumer, ms=1_200)
            assert again.row["id"] == id
            assert shop.row(id, "epoch") == (2,)


async def test_retries_of_a_row_do_not_pile_up_during_an_outage(
    shop_to_break: Shop, mysql_to_break: MysqlServer, mock_clock: MockClock
) -> None:
    """V4: only the last retry of each row waits, and it is written when the server is back."""
    shop = shop_to_break
    topic = shop.create(comment=comment(poller_interval=1))
    shop.fill(4, tenant_id=1)
    async with serving_tables(as_broker(shop)) as world, world.connect() as broker:
        (database,) = world.server.services.tables.databases.values()
        async with broker.consumer(topic, "table", permits=10) as consumer:
            messages = await taken(world, consumer, seconds=1)
            mysql_to_break.kill()
            for turn in range(30):
                await consumer.extend(messages[turn % 3 :], timedelta(seconds=500 + turn))
                await world.clock.advance(ms=250)
                assert database.writer.waiting <= 2 * len(messages)
            last_ms = world.clock.now_ms() - 250 + 529_000
            mysql_to_break.start()
            for _ in range(50):
                await world.clock.advance(ms=100)
            assert database.writer.waiting == 0
            times = [time_next // NS for (time_next,) in shop.rows("time_next")]
            assert times == [last_ms - 2_500, last_ms - 1_250, last_ms, last_ms]
            assert await arrived(consumer) == []


async def test_released_row_does_not_count_an_attempt(shop: Shop, mock_clock: MockClock) -> None:
    """V4."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            id = shop.insert()
            for delay in (None, timedelta(seconds=4), None):
                messages = await taken(world, consumer, seconds=5)
                assert [message.row["id"] for message in messages] == [id]
                assert shop.row(id, "epoch") == (1,)
                await consumer.release(messages, delay)
            messages = await taken(world, consumer, seconds=1)
            assert [message.redelivered for message in messages] == [True]


async def restart(world: World, clean: bool) -> None:
    await (world.stop() if clean else world.crash())
    await world.clock.advance(seconds=1)
    await world.restart()
    await world.clock.advance(seconds=CONNECTED_S)


async def test_stopped_broker_leaves_its_rows_to_the_next(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: rows in flight are sent again at once, and their epochs count on."""
    topic = shop.create(comment=comment(ack_wait=3600, poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            ids = [shop.insert(), shop.insert(epoch=4)]
            later = shop.insert()
            messages = await taken(world, consumer, seconds=2)
            assert {message.row["id"] for message in messages} == {*ids, later}
            last = [message for message in messages if message.row["id"] == later]
            await consumer.nack(last, timedelta(minutes=2))
            await world.clock.advance(ms=100)
            (put_off,) = shop.row(later, "time_next")
            await world.stop()
            now_ns = world.clock.now_ms() * NS
            epochs, times = zip(*shop.rows("epoch, time_next"), strict=True)
            assert epochs == (1, 5, 1)
            assert times == (now_ns, now_ns, put_off)
            await world.restart()
            messages = await taken(world, consumer, seconds=CONNECTED_S)
            assert [message.row["id"] for message in messages] == ids
            assert [epoch for (epoch,) in shop.rows("epoch")] == [2, 6, 1]
            assert await consumer.ack(messages, durable=True) == 2
            (message,) = await taken(world, consumer, minutes=2)
            assert message.row["id"] == later


async def test_crashed_broker_leaves_its_rows_until_their_deadlines(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: epochs count on, and acknowledged rows do not come back."""
    topic = shop.create(comment=comment(ack_wait=60, poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            ids = [shop.insert() for _ in range(3)]
            messages = await taken(world, consumer, seconds=2)
            assert await consumer.ack(messages[:1], durable=True) == 1
            (deadline_ns,) = shop.row(ids[1], "time_next")
            await restart(world, clean=False)
            left_ms = deadline_ns // NS - world.clock.now_ms()
            assert await taken(world, consumer, ms=left_ms - 1) == []
            again = await taken(world, consumer, ms=1_100)
            assert [message.row["id"] for message in again] == ids[1:]
            assert [epoch for (epoch,) in shop.rows("epoch")] == [1, 2, 2]
            assert all(message.redelivered for message in again)
