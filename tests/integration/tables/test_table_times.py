"""When rows of message tables are delivered, and when they are delivered again."""

from __future__ import annotations

import pytest
import trio

from escapement.testing import arrived
from escapement.testing.clock import START_MS
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock

NS = 1_000_000


@pytest.mark.parametrize("time_next", [None, 0, 1, -5, START_MS * NS - 1, START_MS * NS])
async def test_row_without_a_time_or_with_a_past_one_is_due_at_once(
    shop: Shop, mock_clock: MockClock, time_next: int | None
) -> None:
    """V9."""
    topic = shop.create()
    id = shop.insert(time_next=time_next)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, ms=20)
            assert message.row["id"] == id
            assert await consumer.ack([message], durable=True) == 1
            assert await taken(world, consumer, hours=3) == []


async def test_lateness_of_rows_is_that_of_a_subscription(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9, B14: rows that the broker sends for the first time count from their times."""
    topic = shop.create()
    shop.insert(time_next=(START_MS - 5_000) * NS)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as inbox:
            assert await inbox.ack(await taken(world, inbox, ms=20), durable=True) == 1
        (found,) = (await broker.admin("subscriptions.lateness"))["worst"]
        assert (found["topic"], found["subscription"]) == (topic, "table")
        assert found["delivered"] == 1
        assert abs(found["max_ms"] - 5_000) < 200
        answer = await broker.admin("subscriptions.lateness", topic=topic, subscription="table")
        assert [one["max_ms"] for one in answer["minutes"]] == [found["max_ms"]]


async def test_row_of_the_last_possible_time_is_never_sent(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: an application postpones a message forever with the highest time."""
    topic = shop.create()
    for epoch in (0, 3):
        shop.insert(time_next=(1 << 63) - 1, epoch=epoch)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            assert await taken(world, consumer, days=4000) == []
            assert shop.rows("epoch, time_next") == ((0, (1 << 63) - 1), (3, (1 << 63) - 1))


async def test_rows_of_a_transaction_come_with_its_commit(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V8: one transaction enqueues into several tables, and a rollback enqueues nothing."""
    topics = [shop.create(name) for name in ("mails", "texts")]
    async with serving_tables(shop) as world, world.connect() as broker:
        async with (
            broker.consumer(topics[0], "table") as mails,
            broker.consumer(topics[1], "table") as texts,
        ):
            with shop.session() as cursor:
                for round in range(3):
                    for name in ("mails", "texts"):
                        cursor.execute(f"INSERT INTO {name} (tenant_id) VALUES (%s)", (round,))
                    await world.clock.advance(minutes=2)
                    assert await arrived(mails) + await arrived(texts) == []
                    if round == 1:
                        cursor.connection.rollback()
                        continue
                    cursor.connection.commit()
                    await world.clock.advance(seconds=31)
                    for inbox in (mails, texts):
                        (message,) = await arrived(inbox)
                        assert message.row["tenant_id"] == round
                        await inbox.ack([message], durable=True)


@pytest.mark.parametrize(
    ("epoch", "bounds", "least_s", "most_s"),
    [
        (0, {}, 30, 30),  # the first wait is the ack_wait, without jitter
        (1, {}, 60, 60 * 1.33),
        (2, {}, 120, 120 * 1.33),
        (60, {}, 2744 * 86_400, 3650 * 86_400),
        (0, {"min_backoff": 50}, 50, 50),
        (1, {"min_backoff": 70}, 70, 70 * 1.33),
        (2, {"max_backoff": 100}, 75, 100),
        (60, {"min_backoff": 30, "max_backoff": 3600}, 2706, 3600),
        (60, {"max_backoff": 30}, 30, 30),
    ],
)
async def test_row_that_is_not_acknowledged_is_sent_again_at_its_time_next(
    shop: Shop,
    mock_clock: MockClock,
    epoch: int,
    bounds: dict[str, int],
    least_s: float,
    most_s: float,
) -> None:
    """V4: the wait doubles with each epoch, within its bounds, with a jitter of at most a third."""
    topic = shop.create(comment=comment(**bounds))
    id = shop.insert(epoch=epoch)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, ms=20)
            sent_ms = START_MS
            before, time_next = shop.row(id, "epoch, time_next")
            assert before == epoch + 1
            again_ms = time_next // NS
            assert least_s * 1000 <= again_ms - sent_ms <= most_s * 1000 + 20
            await world.clock.advance(ms=again_ms - 1 - world.clock.now_ms())
            assert await arrived(consumer) == []
            (again,) = await taken(world, consumer, ms=12)
            assert (again.row, again.redelivered) == (message.row, True)
            assert shop.row(id, "epoch") == (epoch + 2,)


@pytest.mark.parametrize("type", ["BIGINT", "INT", "MEDIUMINT UNSIGNED", "BIGINT UNSIGNED"])
async def test_highest_epochs_get_times_that_fit_without_a_longest_wait(
    shop: Shop, mock_clock: MockClock, type: str
) -> None:
    """V4: the wait would double 60 times and more."""
    topic = shop.create(comment=comment())
    shop.run(f"ALTER TABLE mails MODIFY epoch {type} NOT NULL DEFAULT 0")
    kind = type.partition(" ")[0]
    most = (1 << ({"BIGINT": 64, "INT": 32, "MEDIUMINT": 24}[kind] - 1)) - 1
    for epoch in (60, most - 1, most):
        shop.insert(epoch=epoch)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            messages = await taken(world, consumer, ms=20)
            assert len(messages) == 3
            for nacked in (False, True):
                if nacked:
                    await consumer.nack(messages)
                    await world.clock.advance(seconds=1)
                now_ns = world.clock.now_ms() * NS
                for epoch, time_next in shop.rows("epoch, time_next"):
                    assert epoch <= most
                    assert now_ns < time_next < now_ns + 3651 * 86_400_000 * NS
            assert await taken(world, consumer, days=1) == []
            assert len(await taken(world, consumer, days=3652)) == 3


async def test_jitter_spreads_the_retries_of_rows_that_were_sent_together(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V4."""
    topic = shop.create()
    shop.fill(300, epoch=1, time_next=None)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            assert len(await taken(world, consumer, ms=20)) == 300
            waits_s = [(time // NS - START_MS) / 1000 for (time,) in shop.rows("time_next")]
            assert 60 <= min(waits_s) < 63
            assert 77 < max(waits_s) <= 80
            assert len(set(waits_s)) >= 8
