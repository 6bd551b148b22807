"""Tests of peek with filters, forecasts and the message history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.inspection import search
from escapement.broker.limits import BrokerLimits
from escapement.testing import World, arrived
from support.faults.held_calls import KEYS, ORDER, Held, uncached

HOUR_MS = 3_600_000
CONFIG = BrokerConfig(ack_wait_ms=60_000, seed=0)


def moment(world: World, **ahead: float) -> datetime:
    return datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) + timedelta(**ahead)


async def seen(peeking: escapement.client.administration.peeking.Peeking) -> list[int]:
    """Return the offsets that a peek shows."""
    return [one.id.offset async for one in peeking]


# -- peek ----------------------------------------------------------------------------


async def test_peek_shows_the_messages_that_match_its_filters(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6: by due time, key, id and property, from memory and from disk, in delivery order."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        for n in range(40):
            await producer.send(
                b"%d" % n,
                delay=timedelta(hours=1 + n // 2),
                key=f"k{n % 3}",
                properties={"source": "till" if n % 4 else "web", "n": n},
            )
            if n == 20:
                await world.checkpoint()
        begun, end = moment(world, hours=4), moment(world, hours=6)
        for _ in range(2):
            assert await seen(broker.peek("x")) == list(range(40))
            assert await seen(broker.peek("x", count=7)) == list(range(7))
            assert await seen(broker.peek("x", due_from=begun, due_until=end)) == [6, 7, 8, 9]
            assert await seen(broker.peek("x", key="k1")) == list(range(1, 40, 3))
            assert await seen(broker.peek("x", key="k1", count=3)) == [1, 4, 7]
            assert await seen(broker.peek("x", key="k", count=3)) == []
            assert await seen(broker.peek("x", properties={"source": "web"})) == list(
                range(0, 40, 4)
            )
            assert await seen(broker.peek("x", properties={"n": 5})) == [5]
            assert await seen(broker.peek("x", properties={"n": "5", "source": "till"})) == [5]
            assert await seen(broker.peek("x", properties={"n": 5, "source": "web"})) == []
            assert await seen(broker.peek("x", properties={"none": ""})) == []
            assert await seen(broker.peek("x", offset=17)) == [17]
            assert await seen(broker.peek("x", offset=17, key="k0")) == []
            assert await seen(broker.peek("x", key="k0", due_from=begun, due_until=end)) == [6, 9]
            await world.checkpoint()
        (one,) = [one async for one in broker.peek("x", offset=5)]
        assert (one.key, one.payload, one.size_bytes) == ("k2", b"5", 1)
        assert one.properties == {"source": "till", "n": 5}
        assert one.due_at == moment(world, hours=3)
        with pytest.raises(escapement.NotFound, match="no message 40"):
            await seen(broker.peek("x", offset=40))
        with pytest.raises(escapement.NaiveDatetime):
            broker.peek("x", due_from=datetime(2026, 12, 24))


@pytest.mark.parametrize("by_key", [False, True])
async def test_peek_shows_a_message_rescheduled_meanwhile_once(
    mock_clock: trio.testing.MockClock, by_key: bool
) -> None:
    """B6: the message is pending throughout, at its old or its new due time."""
    held = Held()
    async with testing.start(run=held, config=uncached(CONFIG)) as world, world.connect() as broker:
        producer = await broker.producer("x")
        for n in range(6):
            await producer.send(b"%d" % n, delay=timedelta(hours=1 + n), key="k")
        await broker.reschedule(
            [0], delay=timedelta(hours=10), topic="x"
        )  # before the peek: has no effect on it
        await world.checkpoint()
        found: list[list[int]] = []
        peeking = broker.peek("x", key="k" if by_key else None)

        async def look() -> None:
            found.append(await seen(peeking))

        async with trio.open_nursery() as nursery:
            with held.hold(KEYS if by_key else ORDER):
                nursery.start_soon(look)
                await held.reached()
                await broker.reschedule([4], delay=timedelta(minutes=30), topic="x")
                await broker.reschedule([2], delay=timedelta(hours=9), topic="x")
        assert found == [[4, 1, 3, 5, 2, 0]]


async def test_peek_reads_in_bounded_pages(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B6, invariant 9: each request looks at a bounded number of messages, also for a rare key."""
    monkeypatch.setattr(search, "_STEP_KEYS", 64)
    monkeypatch.setattr(search, "PAGE", search.PAGE._replace(keys=128, messages=100))
    monkeypatch.setattr(search, "_READ_MESSAGES", 16)
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        rng = np.random.default_rng(1)
        hours = rng.integers(1, 9, 1000).tolist()
        await producer.send_many(
            [b""] * 1000,
            delay=[timedelta(hours=hour) for hour in hours],
            keys=[f"k{n % 100}" for n in range(1000)],
        )
        order = sorted(range(1000), key=lambda n: (hours[n], n))
        assert await seen(broker.peek("x")) == order
        assert await seen(broker.peek("x", count=333)) == order[:333]
        rare = broker.peek("x", key="k99")
        assert await seen(rare) == [n for n in order if n % 100 == 99]
        assert rare.looked >= 1000
        after, requests = None, 0
        while True:
            answer = await broker.admin("topics.peek", topic="x", key="k99", after=after)
            assert answer["looked"] <= 128 + 64
            requests += 1
            after = answer["next"]
            if after is None:
                break
        assert requests > 8


async def test_peek_and_forecast_omit_cancelled_and_acknowledged_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6, B1."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            receipts = await producer.send_many([b""] * 4, delay=[(h, "h") for h in (0, 1, 2, 3)])
            await broker.cancel(receipts[2])
            assert await seen(broker.peek("x")) == [0, 1, 3]
            (message,) = await arrived(inbox)
            await message.ack(durable=True)
            assert await seen(broker.peek("x")) == [1, 3]
            assert (await broker.forecast("x")).total == 2


# -- forecast ------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [False, True])
async def test_rescheduled_message_has_one_due_time(
    mock_clock: trio.testing.MockClock, in_flight: bool
) -> None:
    """B6, B1: the current due time counts, whether the message is ready, in flight or pending."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        producer = await broker.producer("x")
        for hours in (1, 2, 3):
            await producer.send(b"m", delay=timedelta(hours=hours))
        now = moment(world)
        await broker.run_now([2], topic="x")
        await broker.reschedule([0], topic="x", delay="4h")
        async with broker.consumer("x", "s", ack_wait="1d") as inbox:
            if in_flight:
                assert [message.offset for message in await arrived(inbox)] == [2]
            pending = [(one.id.offset, one.due_at - now) async for one in broker.peek("x")]
            assert pending == [(n, timedelta(hours=h)) for n, h in ((2, 0), (1, 2), (0, 4))]
            # Pages of one message each give the same order.
            found, after = [], None
            while not found or after:
                page = await broker.admin("topics.peek", topic="x", count=1, after=after)
                found += [one["offset"] for one in page["messages"]]
                after = page["next"]
            assert found == [2, 1, 0]
            assert await seen(broker.peek("x", due_from=moment(world, minutes=1))) == [1, 0]
            answer = await broker.forecast("x", within="1d")
            assert sum(answer.counts) == answer.total == 2
            await world.clock.advance(hours=5)
            if in_flight:
                await arrived(inbox)
            assert [one.due_at - now async for one in broker.peek("x", offset=0)] == [
                timedelta(hours=4)
            ]


async def test_forecast_counts_due_messages_by_time_span(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6: by minute, hour and day, from memory and disk. Each message counts once."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        rng = np.random.default_rng(7)
        delays = rng.integers(1, 10 * 24 * 3600, 3000)
        for part in np.array_split(delays, 3):
            await producer.send_many(
                [b""] * len(part), delay=[timedelta(seconds=int(s)) for s in part]
            )
            await world.checkpoint()
        async with broker.consumer("x", "s", position="earliest"):
            for span_s, within in [(60, (2, "h")), (3600, (3, "d")), (86_400, (2, "w"))]:
                for _ in range(2):
                    now_s = world.clock.now_ms() / 1000
                    found = await broker.forecast("x", by=timedelta(seconds=span_s), within=within)
                    due_s = delays + START_S
                    until_s = found.until.timestamp()
                    due_s = due_s[(due_s > now_s) & (due_s < until_s)]
                    first_s = found.first.timestamp()
                    assert first_s % span_s == 0
                    assert first_s <= now_s + 0.001 < first_s + span_s
                    expected = np.bincount(((due_s - first_s) // span_s).astype(int))
                    assert np.trim_zeros(found.counts, "b") == np.trim_zeros(expected, "b").tolist()
                    assert found.total == len(due_s)
                    assert found.begins(2) == found.first + 2 * found.by
                    await world.clock.advance(minutes=95)


START_S = testing.START_MS / 1000


async def test_forecast_spans_have_an_origin_and_a_bound(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B6: an origin lets a day begin at local midnight."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send(b"", delay=(30, "h"))
        noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
        found = await broker.forecast("x", by=(1, "d"), within=(3, "d"), origin=noon)
        assert (found.first - noon) % timedelta(days=1) == timedelta(0)
        assert found.total == 1
        with pytest.raises(escapement.InvalidRequest, match="at most 20000 spans"):
            await broker.forecast("x", by=(1, "ms"), within=(1, "d"))
        with pytest.raises(escapement.NotFound):
            await broker.forecast("y")


# -- message history -----------------------------------------------------------------


async def test_message_history_has_a_state_for_each_subscription(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q2, B6: from to_be_fired to acked, and from pending to acknowledged."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        published = moment(world)
        receipt = await producer.send(
            b"p" * 1000, delay=(1, "h"), key="k", properties={"a": 1}, priority=7
        )
        async with broker.consumer("x", "s", name="till") as inbox:
            await broker.admin(
                "subscriptions.create", topic="x", subscription="after", position="offset:1"
            )

            async def states() -> tuple[str, dict[str, str]]:
                message_history = await broker.show(receipt.id)
                return message_history.state, {
                    one.subscription: one.state for one in message_history.subscriptions
                }

            message_history = await broker.show(0, "x")
            assert message_history == await broker.show(receipt.id) == await broker.show(receipt)
            assert (message_history.published_at, message_history.due_at) == (
                published,
                published + timedelta(hours=1),
            )
            assert (message_history.key, message_history.properties, message_history.priority) == (
                "k",
                {"a": 1},
                7,
            )
            assert (message_history.size_bytes, message_history.payload) == (1000, b"p" * 512)
            assert await states() == ("to_be_fired", {"s": "pending", "after": "not covered"})
            for nothing in ("0", [0], True, 0, None):
                with pytest.raises(escapement.InvalidRequest):
                    await broker.show(nothing)  # type: ignore[arg-type]
            await world.clock.advance(hours=1)
            (message,) = await arrived(inbox)
            assert (await broker.show(message)).id == receipt.id
            (one, _) = (await broker.show(receipt.id)).subscriptions
            due = message_history.due_at
            assert (one.state, one.attempts, one.consumer) == ("in flight", 1, "till")
            assert (one.since, one.until) == (due, due + timedelta(minutes=1))
            await message.nack((10, "m"))
            assert await arrived(inbox) == []
            (one, _) = (await broker.show(receipt.id)).subscriptions
            assert (one.state, one.attempts) == ("in retry", 1)
            assert (one.since, one.until) == (None, due + timedelta(minutes=10))
            await world.clock.advance(minutes=10)
            (message,) = await arrived(inbox)
            assert (await states())[0] == "fired"
            await message.ack(durable=True)
            assert await states() == ("acked", {"s": "acknowledged", "after": "not covered"})
            done, other = (await broker.show(receipt.id)).subscriptions
            assert (done.attempts, other.attempts) == (
                None,
                0,
            )  # the attempts of an acknowledged message are unknown
            with pytest.raises(escapement.NotFound, match="has no message 1: its next offset is 1"):
                await broker.show(1, "x")


async def test_due_message_that_is_not_delivered_is_fired_across_a_restart(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q2: waiting and ready messages, and in-flight messages of an ordered subscription."""
    limits = BrokerLimits(ready_messages=4, deliver_messages=4)
    async with testing.start(config=BrokerConfig(limits=limits, seed=0)) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            await producer.send_many([b""] * 20)
            async with (
                broker.consumer("x", "s", position="earliest", permits=1) as shared,
                broker.consumer("x", "o", kind="failover", position="earliest", permits=2),
            ):
                await trio.testing.wait_all_tasks_blocked()
                message = await shared.receive()
                assert message is not None
                states = [(await broker.show(n, "x")).subscriptions for n in range(20)]
                by_name = [{one.subscription: one.state for one in many} for many in states]
                assert [one["s"] for one in by_name][:2] == ["in flight", "in flight"]
                assert [one["s"] for one in by_name][-1] == "waiting"
                assert "ready" in [one["s"] for one in by_name]
                assert [one["o"] for one in by_name][:2] == ["in flight", "in flight"]
                (held,) = [one for one in states[0] if one.subscription == "o"]
                assert (held.until, held.consumer is not None) == (None, True)
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            message_history = await broker.show(19, "x")
            assert message_history.state == "fired"
            assert {one.state for one in message_history.subscriptions} == {"waiting"}


async def test_attempts_are_shown_while_they_are_known(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q2: while the topic is paused, and after its log is read again."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        names = {"topic": "x", "subscription": "e"}
        await broker.admin("subscriptions.create", **names, kind="exclusive")
        await (await broker.producer("x")).send_many([b"0", b"1"])

        async def status_of(offset: int) -> tuple[str, int | None]:
            (one,) = (await broker.show(offset, "x")).subscriptions
            return one.state, one.attempts

        async with broker.consumer("x", "e", kind="exclusive") as inbox:
            first, _ = await arrived(inbox)
            await broker.pause("x")
            await first.nack((0, "ms"))
            await world.clock.advance(seconds=1)
            assert await status_of(0) == ("ready", 1)
        await world.clock.settle()
        assert await status_of(0) == ("waiting", 1)
        await broker.cancel(0, topic="x")
        assert await status_of(0) == ("waiting", 1)  # delivered before, so it is redelivered
        await broker.admin("subscriptions.update", **names, policy={"max_deliveries": 2})
        await broker.resume("x")
        async with broker.consumer("x", "e", kind="exclusive") as inbox:
            again, _ = await arrived(inbox)
            await again.nack()
            await world.clock.advance(seconds=3)
            assert await status_of(0) == ("acknowledged", None)
            (dead_letter,) = await broker.admin("dlq.list", **names)
            assert (dead_letter["original_offset"], dead_letter["attempts"]) == (0, 2)


async def test_cancelled_message_has_state_cancelled(mock_clock: trio.testing.MockClock) -> None:
    """Q2, B1."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        receipt = await producer.send(b"", delay=(1, "h"))
        await broker.cancel(receipt)
        assert (await broker.show(receipt.id)).state == "cancelled"
        async with broker.consumer("x", "s"):
            message_history = await broker.show(receipt.id)
            assert (message_history.state, message_history.subscriptions[0].state) == (
                "cancelled",
                "cancelled",
            )
