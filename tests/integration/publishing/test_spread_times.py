"""Spread: due times that are scattered over a span, in a whole broker (B12)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.client.delivery_times import span_ms
from escapement.clock import moment
from escapement.errors import DelaysDisabled, DelayTooLong, InvalidRequest
from escapement.testing import arrived

CALM = BrokerConfig(ack_wait_ms=10**11, seed=0)
SPAN_MS = 600_000


async def published_due_ms(broker: escapement.Broker, topic: str) -> list[int]:
    found: list[int] = []
    async for page in broker.read(topic):
        found += page.due_ms.tolist()
    return found


async def current_due_ms(broker: escapement.Broker, topic: str, count: int) -> list[int]:
    shown = [await broker.show(offset, topic) for offset in range(count)]
    return [round(one.due_at.timestamp() * 1000) for one in shown]


def check_scattered(due_ms: list[int], begin_ms: int) -> None:
    """Check that due times are within the span from ``begin_ms`` on, and in all parts of it."""
    places = np.array(due_ms) - begin_ms
    assert (places >= 0).all()
    assert (places < SPAN_MS).all()
    assert (np.bincount(places * 4 // SPAN_MS, minlength=4) > len(due_ms) / 8).all()


@pytest.mark.parametrize("way", ["send", "submit", "builder", "send_many"])
async def test_sent_messages_are_scattered_from_their_time_on(
    way: str, mock_clock: MockClock
) -> None:
    """B12: for a delay, a time, and neither. The first message comes no earlier."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        now_ms = world.clock.now_ms()
        begins: dict[int, dict[str, Any]] = {
            now_ms: {},
            now_ms + 3_600_000: {"delay": "1h"},
            now_ms + 7_200_000: {"at": moment(now_ms + 7_200_000)},
        }
        for number, (begin_ms, when) in enumerate(begins.items()):
            topic = f"t{number}"
            # The places of messages follow from the name. Without one they are random.
            producer = await broker.producer(topic, name=f"sender-{number}")
            if way == "send_many":
                await producer.send_many([b"x"] * 100, spread="10m", **when)
            for _ in range(0 if way == "send_many" else 100):
                if way == "send":
                    await producer.send(b"x", spread="10m", **when)
                elif way == "submit":
                    await (await producer.submit(b"x", spread="10m", **when))
                else:
                    builder = producer.message(b"x").spread(10, "minutes")
                    if "delay" in when:
                        builder.delay_at(1, "hour")
                    elif "at" in when:
                        builder.schedule_at(when["at"])
                    await builder.send()
            check_scattered(await published_due_ms(broker, topic), begin_ms)


async def test_message_of_a_batch_without_spread_keeps_its_time(mock_clock: MockClock) -> None:
    """B12: single messages share a batch, and each has its own spread."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("t")
        first = await producer.submit(b"first", delay="1h", spread="10m")
        second = await producer.submit(b"second", delay="1h")
        third = await producer.submit(b"third", spread="1ms")
        for pending in (first, second, third):
            await pending
        found = await published_due_ms(broker, "t")
        now_ms = world.clock.now_ms()
        assert found[0] - now_ms > 3_600_000
        assert found[1] - now_ms == 3_600_000
        assert found[2] == now_ms


async def test_publish_that_is_repeated_has_the_same_time(mock_clock: MockClock) -> None:
    """B12: by its dedup key whoever sends it, else by producer name and sequence."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        at = moment(world.clock.now_ms() + 3_600_000)
        keyed, numbered = [], []
        for number in range(2):
            producer = await broker.producer(f"keyed{number}")
            await producer.send(b"other")
            await producer.send_many([b"a", b"b"], at=at, dedup=["k", "l"], spread="10m")
            await producer.send(b"c", at=at, dedup="m", spread="10m")
            keyed.append((await published_due_ms(broker, f"keyed{number}"))[1:])
            # In another topic, as if the broker had lost the first publish.
            named = await broker.producer(f"numbered{number}", name="p")
            if number:
                for sequence in (7, 8, 9):
                    await named.send(b"x", at=at, spread="10m", sequence=sequence)
            else:
                await named.send_many([b"x"] * 3, at=at, spread="10m", sequence=7)
            numbered.append(await published_due_ms(broker, f"numbered{number}"))
        assert keyed[0] == keyed[1]
        assert numbered[0] == numbered[1]
        assert len(set(keyed[0])) == len(set(numbered[0])) == 3


async def test_message_with_a_spread_is_never_delivered_early(mock_clock: MockClock) -> None:
    """B12."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("t")
        async with broker.consumer("t", "s", permits=1_000) as inbox:
            await producer.send_many([b"x"] * 200, delay="1h", spread="10m")
            await world.clock.advance(hours=1, ms=-1)
            assert await arrived(inbox) == []
            found = 0
            for minutes in range(1, 11):
                await world.clock.advance(minutes=1, ms=20 if minutes == 10 else 0)
                messages = await arrived(inbox)
                assert all(message.due_ms <= world.clock.now_ms() for message in messages)
                assert messages
                found += len(messages)
            assert found == 200


async def test_rescheduled_messages_are_scattered_and_a_repetition_changes_nothing(
    mock_clock: MockClock,
) -> None:
    """B12: the place depends on the offset. run_now scatters from now on."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("t")
        receipts = await producer.send_many([b"x"] * 100, delay="9h")
        begin_ms = world.clock.now_ms() + 3_600_000
        outcomes = await broker.reschedule(receipts, at=moment(begin_ms), spread="10m")
        assert outcomes.done.all()
        found = await current_due_ms(broker, "t", 100)
        check_scattered(found, begin_ms)
        for offset in (3, 5):
            await broker.reschedule(offset, topic="t", at=moment(begin_ms), spread="10m")
        assert await current_due_ms(broker, "t", 100) == found
        await broker.reschedule(receipts, delay="2h", spread="10m")
        check_scattered(await current_due_ms(broker, "t", 100), begin_ms + 3_600_000)
        now_ms = world.clock.now_ms()
        await broker.run_now(receipts, spread="10m")
        check_scattered(await current_due_ms(broker, "t", 100), now_ms)


async def test_redriven_messages_are_scattered(mock_clock: MockClock) -> None:
    """B12: a topic that takes no delays refuses the redrive, and no dead letter is moved."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        names = {"topic": "t", "subscription": "s"}
        await broker.admin("subscriptions.create", **names, policy={"max_deliveries": 1})
        await (await broker.producer("t")).send_many([b"x"] * 100)
        async with broker.consumer("t", "s", permits=1_000) as inbox:
            await inbox.nack([message.id for message in await arrived(inbox)])
            await world.clock.advance(seconds=3)
        for spread_ms, error in ((10**14, DelayTooLong), (SPAN_MS, DelaysDisabled)):
            if error is DelaysDisabled:
                await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
            with pytest.raises(error):
                await broker.admin("dlq.redrive", **names, spread_ms=spread_ms)
        await broker.admin("namespaces.enable_delayed_message", namespace="public/default")
        assert (await broker.admin("dlq.count", **names))["dead_letters"] == 100
        begin_ms = world.clock.now_ms()
        answer = await broker.admin("dlq.redrive", **names, spread_ms=SPAN_MS)
        assert answer == {"redriven": 100}
        await world.clock.advance(seconds=3)
        due_ms = (await published_due_ms(broker, "t"))[100:]
        check_scattered(due_ms, begin_ms)


async def test_scattered_time_past_the_maximum_delay_is_refused(mock_clock: MockClock) -> None:
    """B10, B12: the policy looks at the time that each message gets."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t")
        await broker.admin("topics.update", topic="t", policy={"max_delay_ms": "1h"})
        producer = await broker.producer("t")
        with pytest.raises(DelayTooLong, match="of a batch of 100 has a delay of"):
            await producer.send_many([b"x"] * 100, delay="55m", spread="10m")
        receipts = await producer.send_many([b"x"] * 100, delay="50m", spread="10m")
        with pytest.raises(DelayTooLong, match="of a batch of 100 has a delay of"):
            await broker.reschedule(receipts, delay="55m", spread="10m")


@pytest.mark.parametrize("spread", ["0s", "10", 7, "4000d", (0, "s")])
def test_invalid_spread_is_refused(spread: Any) -> None:
    with pytest.raises(InvalidRequest, match="spread"):
        span_ms(spread)
    assert span_ms(None) == 0


async def test_messages_of_a_paused_seek_are_scattered_by_run_now(mock_clock: MockClock) -> None:
    """B12: the way to spread a seek. A subscription that has the messages gets nothing again."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        for name in ("s", "other"):
            await broker.admin("subscriptions.create", topic="t", subscription=name)
        producer = await broker.producer("t")
        await producer.send_many([b"old"] * 100)
        await producer.send(b"future", delay="5h")
        async with (
            broker.consumer("t", "s", permits=1_000) as inbox,
            broker.consumer("t", "other", permits=1_000) as other,
        ):
            for one in (inbox, other):
                await one.ack([message.id for message in await arrived(one)], durable=True)
            await broker.pause("t", "s")
            await inbox.seek("earliest")
            now = moment(world.clock.now_ms() + 1)
            found = await broker.select("t", due_until=now)
            assert len(found) == 100
            assert (await broker.run_now(found, spread="10m")).done.all()
            await broker.resume("t", "s")
            assert len(await arrived(inbox)) < 10
            await world.clock.advance(minutes=5)
            half = len(await arrived(inbox))
            assert 25 < half < 75
            await world.clock.advance(minutes=5)
            assert half + len(await arrived(inbox)) > 95
            assert await arrived(other) == []
            await world.clock.advance(hours=5)
            assert [m.payload for m in await arrived(other)] == [b"future"]
