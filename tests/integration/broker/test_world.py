"""A whole broker on a virtual clock, with the real client."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.testing import arrived
from support.faults.dying_brokers import lose_index

HOUR_MS = 3_600_000

# Messages stay in flight while a test advances the clock by hours.
PATIENT = BrokerConfig(ack_wait_ms=100 * 24 * HOUR_MS, seed=0)
SMALL = BrokerConfig(
    ack_wait_ms=100 * 24 * HOUR_MS,
    limits=BrokerLimits(ready_messages=100, deliver_messages=64, window_messages=1000),
    seed=0,
)


async def values(inbox: escapement.Inbox) -> list[bytes]:
    """Return the values of messages that have arrived, after acknowledging them durably."""
    messages = await arrived(inbox)
    if messages:
        assert await inbox.ack([m.id.offset for m in messages], durable=True) == len(messages)
    return [m.value for m in messages]


async def test_thirty_days_take_milliseconds(mock_clock: trio.testing.MockClock) -> None:
    """B4, P1, P7: the virtual clock skips the delay."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("reminders")
        async with broker.consumer("reminders", "mail") as inbox:
            receipt = await producer.send(b"renew", delay=timedelta(days=30))
            await world.clock.advance(days=29, hours=23, minutes=59)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            (message,) = await arrived(inbox)
            assert message.id == receipt.id
            assert message.value == b"renew"
            assert message.attempt == 1
            assert not message.redelivered
            await message.ack(durable=True)
            await world.clock.advance(days=1)
            assert await arrived(inbox) == []


async def test_message_builder_takes_delays_and_times_with_a_time_zone(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P1: .delay_at(3, "minutes") and .schedule_at(datetime); naive datetimes are refused."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("tasks")
        async with broker.consumer("tasks", "work") as inbox:
            christmas = datetime(2026, 12, 24, 18, tzinfo=UTC)
            await producer.message(b"gift").schedule_at(christmas).send()
            await producer.message(b"remind").delay_at(3, "minutes").send()
            with pytest.raises(escapement.NaiveDatetime):
                await producer.message(b"no").schedule_at(datetime(2026, 12, 24, 18)).send()
            await world.clock.advance(minutes=3)
            assert await values(inbox) == [b"remind"]
            await world.clock.advance(hours=5, minutes=56, seconds=59)
            assert await values(inbox) == []
            await world.clock.advance(seconds=1)
            (gift,) = await arrived(inbox)
            assert gift.deliver_at == christmas


async def test_a_batch_carries_a_time_for_each_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P9: each message of a batch is due at its own time."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("batch")
        async with broker.consumer("batch", "s") as inbox:
            delays = [timedelta(hours=h) for h in (3, 1, 2)]
            await producer.send_many([b"3", b"1", b"2"], delay=delays)
            for expected in (b"1", b"2", b"3"):
                await world.clock.advance(hours=1)
                assert await values(inbox) == [expected]


async def test_a_message_is_never_early_and_at_most_a_tick_late(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P3: the tick of the namespace is the resolution of delays."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="t/n")
        await broker.admin("namespaces.enable_delayed_message", namespace="t/n", tick_ms=100)
        producer = await broker.producer("t/n/x")
        async with broker.consumer("t/n/x", "s") as inbox:
            receipts = await producer.send_many(
                [b"%d" % i for i in range(50)],
                delay=[timedelta(milliseconds=37 * i) for i in range(50)],
            )
            assert len(receipts) == 50
            seen: dict[bytes, int] = {}
            for _ in range(60):
                for message in await arrived(inbox):
                    now_ms = world.clock.now_ms()
                    assert message.due_ms <= now_ms
                    assert now_ms - message.due_ms <= 100 + 33
                    seen[message.value] = now_ms
                await world.clock.advance(ms=33)
            assert len(seen) == 50


async def test_changing_granularity_and_tick_moves_no_due_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P4: a running broker raises and lowers both."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="t/n")
        producer = await broker.producer("t/n/x")
        async with broker.consumer("t/n/x", "s") as inbox:
            for minutes in (2, 7, 20, 300):
                await producer.send(b"%d" % minutes, delay=timedelta(minutes=minutes))
            start_ms = world.clock.now_ms()
            got: list[tuple[bytes, int]] = []
            settings = [(60_000, 10), (3_600_000, 1000), (1000, 1000), (86_400_000, 60_000)]
            for granularity_ms, tick_ms in settings:
                await broker.admin(
                    "namespaces.enable_delayed_message",
                    namespace="t/n",
                    granularity_ms=granularity_ms,
                    tick_ms=tick_ms,
                )
                await world.clock.advance(minutes=6)
                for message in await arrived(inbox):
                    assert message.due_ms <= world.clock.now_ms()
                    got.append((message.value, message.due_ms - start_ms))
            await world.clock.advance(minutes=280)
            got += [(m.value, m.due_ms - start_ms) for m in await arrived(inbox)]
            assert got == [(b"%d" % m, m * 60_000) for m in (2, 7, 20, 300)]


async def test_disabled_delays_are_refused_and_delayed_messages_are_not_early(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P2: messages that were delayed before keep their due times."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="t/n")
        producer = await broker.producer("t/n/x")
        async with broker.consumer("t/n/x", "s") as inbox:
            await producer.send(b"before", delay=timedelta(hours=1))
            await broker.admin("namespaces.disable_delayed_message", namespace="t/n")
            with pytest.raises(escapement.DelaysDisabled):
                await producer.send(b"no", delay=timedelta(hours=1))
            await producer.send(b"now")
            assert await values(inbox) == [b"now"]
            await world.clock.advance(hours=1)
            assert await values(inbox) == [b"before"]


async def test_confirmed_messages_are_delivered_when_due_after_a_crash(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P6, P5, V2: acknowledged messages are not delivered again."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s") as inbox:
                await producer.send_many([b"now", b"also"])
                await producer.send(b"in flight")
                await producer.send(b"later", delay=timedelta(hours=1))
                messages = await arrived(inbox)
                await inbox.ack([m.id.offset for m in messages[:2]], durable=True)
                await world.checkpoint()
                await producer.send(b"much later", delay=timedelta(hours=2))
                await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            (again,) = await arrived(inbox)
            assert again.value == b"in flight"
            assert again.redelivered
            await again.ack(durable=True)
            for expected in (b"later", b"much later"):
                await world.clock.advance(minutes=59)
                assert await arrived(inbox) == []
                await world.clock.advance(minutes=1)
                (message,) = await arrived(inbox)
                assert message.value == expected
                assert not message.redelivered
                await message.ack(durable=True)


async def test_clean_restart_marks_only_delivered_messages_as_redelivered(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 6: other messages are delivered for the first time."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s") as inbox:
                await producer.send(b"delivered")
                assert len(await arrived(inbox)) == 1
            await producer.send(b"never")
        await world.stop()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            messages = {m.value: m for m in await arrived(inbox)}
            assert messages[b"delivered"].redelivered
            assert messages[b"delivered"].attempt == 2
            assert not messages[b"never"].redelivered
            assert messages[b"never"].attempt == 1


async def test_nack_timeout_and_backoff_count_attempts_across_a_restart(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: the back-off begins at ack_wait and doubles. Attempt and retry time survive a crash."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s", ack_wait=timedelta(seconds=10)) as inbox:
                await producer.send(b"hard")
                (first,) = await arrived(inbox)
                await world.clock.advance(seconds=10)
                (second,) = await arrived(inbox)
                assert (first.attempt, second.attempt) == (1, 2)
                assert second.redelivered
                await world.clock.advance(seconds=19)
                assert await arrived(inbox) == []
                await world.clock.advance(seconds=8)  # 20 s and a third of jitter
                (third,) = await arrived(inbox)
                assert third.attempt == 3
                await inbox.nack([third.id], delay=timedelta(minutes=5))
                await world.clock.settle()
                await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            await world.clock.advance(minutes=4)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            (fourth,) = await arrived(inbox)
            assert fourth.attempt == 4
            await fourth.ack(durable=True)


async def test_messages_of_a_consumer_that_leaves_are_redelivered_at_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1, V6: another consumer receives them as attempt 2."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as first:
            await producer.send_many([b"a", b"b", b"c"])
            assert len(await arrived(first)) == 3
            async with broker.consumer("x", "s") as second:
                assert await arrived(second) == []
                await first.aclose()
                again = await arrived(second)
                assert [m.value for m in again] == [b"a", b"b", b"c"]
                assert all(m.attempt == 2 for m in again)


async def test_consumers_take_turns_and_never_share_a_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V6, invariant 5: a message is in flight at one consumer only."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as one, broker.consumer("x", "s") as two:
            for i in range(10):
                await producer.send(b"%d" % i)
            first, second = await arrived(one), await arrived(two)
            assert len(first) == len(second) == 5
            assert len({m.id for m in first + second}) == 10


async def test_exclusive_and_failover_read_the_log_and_ignore_delays(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P7, N1: both kinds deliver in arrival order."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        delays = [timedelta(hours=h) for h in (3, 1, 2)]
        await producer.send_many([b"3", b"1", b"2"], delay=delays)
        async with broker.consumer("x", "log", kind="exclusive", position="earliest") as inbox:
            assert await values(inbox) == [b"3", b"1", b"2"]
            with pytest.raises(escapement.Conflict):
                async with broker.consumer("x", "log", kind="exclusive"):
                    pass
            await producer.send(b"4", delay=timedelta(days=1))
            assert await values(inbox) == [b"4"]
        async with (
            broker.consumer("x", "fo", kind="failover", position="earliest") as active,
            broker.consumer("x", "fo", kind="failover", position="earliest") as standby,
        ):
            assert [m.value for m in await arrived(active)] == [b"3", b"1", b"2", b"4"]
            assert await arrived(standby) == []
            await active.aclose()
            assert await values(standby) == [b"3", b"1", b"2", b"4"]


async def test_ordered_subscription_resumes_at_its_position_after_a_crash(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3: its durable position includes acknowledgements out of order."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            await producer.send_many([b"%d" % i for i in range(6)])
            async with broker.consumer("x", "l", kind="exclusive", position="earliest") as inbox:
                messages = await arrived(inbox)
                assert await inbox.ack([messages[4].id, messages[1].id], durable=True) == 2
                await inbox.nack([messages[2].id], delay=timedelta(0))
                again = await arrived(inbox)
                assert [(m.value, m.attempt) for m in again] == [(b"2", 2)]
            await world.crash()
        await world.restart()
        async with (
            world.connect() as broker,
            broker.consumer("x", "l", kind="exclusive") as inbox,
        ):
            assert [m.value for m in await arrived(inbox)] == [b"0", b"2", b"3", b"5"]


async def test_subscription_at_latest_gets_messages_that_become_due_after_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P12: all subscriptions share an index. A new one receives messages that are still delayed."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send(b"past")
        await producer.send(b"pending", delay=timedelta(hours=1))
        await world.clock.advance(minutes=1)
        await world.checkpoint()
        async with broker.consumer("x", "late") as late:
            assert await arrived(late) == []
            await world.clock.advance(hours=1)
            assert await values(late) == [b"pending"]
            async with broker.consumer("x", "all", position="earliest") as everything:
                await world.clock.settle()
                assert await values(everything) == [b"past", b"pending"]


async def test_deleting_the_index_changes_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 7, P5: the broker rebuilds the index from the log."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s") as inbox:
                for hours in range(1, 6):
                    await producer.send(b"%d" % hours, delay=timedelta(hours=hours))
                await world.checkpoint()
                await world.clock.advance(hours=2)
                assert await values(inbox) == [b"1", b"2"]
                await producer.send(b"tail", delay=timedelta(hours=4))
        await world.stop()
        lose_index(world)
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            await world.clock.advance(hours=10)
            assert await values(inbox) == [b"3", b"4", b"5", b"tail"]


async def test_clock_set_back_makes_no_message_early_lost_or_duplicate(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 2: the broker checks its own clock again at delivery."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            now = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
            for minutes in (10, 20, 30):
                await producer.send(b"%d" % minutes, at=now + timedelta(minutes=minutes))
            await world.clock.advance(minutes=15)
            assert await values(inbox) == [b"10"]
            world.clock.set_back(HOUR_MS)
            await world.clock.advance(minutes=10)
            assert await arrived(inbox) == []
            await producer.send(b"new")
            assert await values(inbox) == [b"new"]
            await world.clock.advance(minutes=54)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            assert await values(inbox) == [b"20"]
            await world.clock.advance(minutes=10)
            assert await values(inbox) == [b"30"]


@pytest.mark.parametrize("back_ms", [1, 5, 500, 2_000, 60_000, HOUR_MS])
@pytest.mark.parametrize("others", ["absent", "another range", "another tick"])
async def test_messages_due_before_the_clock_was_set_back_are_delivered(
    mock_clock: trio.testing.MockClock, back_ms: int, others: str
) -> None:
    """Invariant 4: also messages that had no room, or no consumer for their key, just before."""
    async with testing.start(config=SMALL) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s"):
            pass
        await world.clock.advance(seconds=30)
        keys = [key for key in (f"u{n}" for n in range(1000)) if escapement.slot_of(key) >= 20_000]
        keys = keys[:300]
        if others == "another range":
            async with broker.consumer("x", "s", key_range=(0, 19_999)):
                await producer.send_many([b"m"] * 300, keys=keys)
                await world.clock.settle()
                world.clock.set_back(back_ms)
                await world.clock.advance(ms=1)
        else:
            await producer.send_many([b"m"] * 300)
            world.clock.set_back(back_ms)
            if others == "another tick":
                await broker.admin(
                    "namespaces.enable_delayed_message", namespace="public/default", tick_ms=100
                )
        got: list[int] = []
        async with broker.consumer("x", "s", permits=7) as inbox:
            for _ in range(40):
                while some := await arrived(inbox):
                    got += [message.offset for message in some]
                    await inbox.ack(some, durable=True)
                await world.clock.advance(ms=max(back_ms, 2_000) // 20)
        assert sorted(got) == list(range(300))


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_ten_times_the_capacity_of_ready_is_delivered_without_further_traffic(
    mock_clock: trio.testing.MockClock, checkpoint: bool
) -> None:
    """Invariant 4, V3: also while producers publish messages with past times."""
    async with testing.start(config=SMALL) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s"):
            pass
        rng = np.random.default_rng(5)
        delays = [timedelta(seconds=int(s)) for s in rng.integers(1, 100, 1000)]
        await producer.send_many([b"d%d" % i for i in range(1000)], delay=delays)
        past = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) - timedelta(days=1)
        for i in range(100):
            await world.clock.advance(seconds=1)
            await producer.send(b"p%d" % i, at=past)
        if checkpoint:
            await world.checkpoint()
        async with broker.consumer("x", "s", permits=150) as inbox:
            got: list[bytes] = []
            while batch := await values(inbox):
                got += batch
            assert len(got) == len(set(got)) == 1100


async def test_ten_thousand_messages_due_in_one_millisecond_pass_a_small_window(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 9: a position can lie between messages with the same due time."""
    async with testing.start(config=SMALL) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", permits=300) as inbox:
            at = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
            await producer.send_many([b"%d" % i for i in range(10_000)], at=at)
            await world.checkpoint()
            await world.clock.advance(minutes=59)
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=1)
            got: list[bytes] = []
            while batch := await values(inbox):
                got += batch
            assert got == [b"%d" % i for i in range(10_000)]


async def test_reopened_producer_name_continues_its_sequence_without_duplicates(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B3: the sequence of a named producer survives a crash."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x", name="importer")
            for sequence in range(5):
                await producer.send(b"%d" % sequence, sequence=sequence)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            producer = await broker.producer("x", name="importer")
            assert producer.next_sequence == 5
            receipts = [await producer.send(b"%d" % s, sequence=s) for s in range(3, 8)]
            assert [r.duplicate for r in receipts] == [True, True, False, False, False]
            async with broker.consumer("x", "s", position="earliest") as inbox:
                await world.clock.settle()
                assert await values(inbox) == [b"%d" % i for i in range(8)]


async def test_the_newer_producer_fences_the_older(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B3: both have the same name."""
    async with (
        testing.start(config=PATIENT) as world,
        world.connect() as one,
        world.connect() as two,
    ):
        older = await one.producer("x", name="p")
        await older.send(b"a")
        newer = await two.producer("x", name="p")
        with pytest.raises(escapement.ProducerFenced):
            await older.send(b"b")
        await newer.send(b"c")


async def test_concurrent_publishers_get_offsets_without_gaps(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N4, N1: offsets are consecutive."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        offsets: list[int] = []

        async def publish(number: int) -> None:
            producer = await broker.producer("x")
            for i in range(20):
                receipt = await producer.send(b"%d/%d" % (number, i))
                offsets.append(receipt.id.offset)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(publish, number)
        assert sorted(offsets) == list(range(100))
        assert world.server.registry.active[1].next_offset == 100


async def test_deleting_a_topic_ends_its_consumers_and_producers(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7: its messages are deleted, and a new topic of that name begins at offset 0."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send(b"a", delay=timedelta(hours=1))
        async with broker.consumer("x", "s") as inbox:
            with pytest.raises(escapement.Conflict):
                await broker.admin("topics.delete", topic="x")
            await broker.admin("topics.delete", topic="x", force=True)
            with pytest.raises(escapement.NotFound):
                async for _ in inbox:
                    pass
        with pytest.raises(escapement.NotFound):
            await producer.send(b"b")
        again = await broker.producer("x")
        receipt = await again.send(b"new topic")
        assert receipt.id.offset == 0
        async with broker.consumer("x", "s", position="earliest") as inbox:
            await world.clock.advance(hours=2)
            assert await values(inbox) == [b"new topic"]


async def test_peek_shows_pending_messages_by_due_time_and_consumes_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6: peek reads memory and disk."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send(b"nobody wants it")
        async with broker.consumer("x", "s") as inbox:
            for hours in (5, 1, 3):
                await producer.send(b"%d" % hours, delay=timedelta(hours=hours), key=f"k{hours}")
            for _ in range(2):
                rows = (await broker.admin("topics.peek", topic="x"))["messages"]
                assert [(row["payload"], row["key"]) for row in rows] == [
                    (b"1", "k1"),
                    (b"3", "k3"),
                    (b"5", "k5"),
                ]
                assert [row["due_in_ms"] for row in rows] == [HOUR_MS, 3 * HOUR_MS, 5 * HOUR_MS]
                await world.checkpoint()
            assert len((await broker.admin("topics.peek", topic="x", count=2))["messages"]) == 2
            await world.clock.advance(hours=1)
            (message,) = await arrived(inbox)
            rows = (await broker.admin("topics.peek", topic="x"))["messages"]
            assert [row["due_in_ms"] for row in rows] == [0, 2 * HOUR_MS, 4 * HOUR_MS]
            await message.ack(durable=True)
            rows = (await broker.admin("topics.peek", topic="x"))["messages"]
            assert [row["payload"] for row in rows] == [b"3", b"5"]
            await world.clock.advance(hours=4)
            assert await values(inbox) == [b"3", b"5"]
            assert (await broker.admin("topics.peek", topic="x"))["messages"] == []


async def test_checkpoint_interrupted_before_its_state_reuses_no_offsets(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N1, invariant 1: the index has the rows, and only the journal has the end of the log."""
    for steps in range(1, 16):
        async with testing.start(config=PATIENT) as world:
            async with world.connect() as broker:
                producer = await broker.producer("x")
                await producer.send(b"first", delay=timedelta(hours=1))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(world.checkpoint)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
                await world.crash()
            await world.restart()
            async with world.connect() as broker:
                other = await broker.producer("other")
                await other.send(b"something else")
                await world.checkpoint()
                await world.crash()
            await world.restart()
            async with world.connect() as broker:
                producer = await broker.producer("x")
                receipt = await producer.send(b"second")
                assert receipt.id is not None
                assert receipt.id.offset == 1


async def test_message_larger_than_a_batch_is_sent_alone(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N2: a message may be larger than a batch, up to the limit of the broker."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x", max_batch_bytes=1000)
        large = bytes(3_000_000)
        async with broker.consumer("x", "s") as inbox:
            receipts = await producer.send_many([b"small", large, b"after"])
            assert len(receipts) == 3
            await producer.send(large)
            got: list[bytes] = []
            while batch := await values(inbox):
                got += batch
            assert got == [b"small", large, b"after", large]
        with pytest.raises(escapement.LimitExceeded):
            await producer.send(bytes(20_000_000))


async def test_topic_stats_list_connected_and_named_producers(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N4: unnamed producers are forgotten when they disconnect."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        async with world.connect() as gone:
            await (await gone.producer("x")).send(b"m")
            await (await gone.producer("x", name="importer")).send(b"m")
        await world.clock.settle()
        here = await broker.producer("x")
        await here.send(b"m")
        producers = (await broker.admin("topics.stats", topic="x"))["producers"]
        assert len(producers) == 2
        assert {row["name"]: row["connected"] for row in producers}["importer"] is False
        assert [row["connected"] for row in producers if row["name"] != "importer"] == [True]


@pytest.mark.parametrize("end", ["left", "stopped", "crashed"])
async def test_end_of_a_test_world_logs_no_outage(
    end: str, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B4: the log of a test does not report an outage when the test's broker ends."""
    caplog.set_level(logging.WARNING)
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            await (await broker.producer("x")).send(b"m")
        if end == "stopped":
            await world.stop()
        elif end == "crashed":
            await world.crash()
    assert caplog.records == []
