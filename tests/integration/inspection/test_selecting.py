"""Tests of selecting pending messages by time, key and property, to amend all of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.inspection import search
from escapement.storage.index.segments import segment
from escapement.testing import World, arrived
from support.faults.held_calls import KEYS, Held, uncached

HOUR = timedelta(hours=1)


async def publish(world: World, broker: escapement.Broker, count: int) -> datetime:
    """Publish messages, message n due in n hours with key k{n % 3}, and return the time."""
    await broker.admin("subscriptions.create", topic="t", subscription="s")
    async with await broker.producer("t") as producer:
        await producer.send_many(
            [b"%d" % n for n in range(count)],
            keys=[f"k{n % 3}" for n in range(count)],
            properties=[{"parity": n % 2} for n in range(count)],
            delay=[n * HOUR for n in range(count)],
        )
    return datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)


@pytest.mark.parametrize("on_disk", [False, True])
async def test_messages_are_selected_by_time_key_and_property(
    mock_clock: MockClock, on_disk: bool
) -> None:
    """B1: in delivery order, without acknowledged, cancelled and rescheduled messages."""
    async with testing.start() as world, world.connect() as broker:
        now = await publish(world, broker, 12)
        await broker.cancel([4], topic="t")
        await broker.reschedule([5], delay=20 * HOUR, topic="t")
        if on_disk:
            await world.checkpoint()
        async with broker.consumer("t", "s") as inbox:
            (first,) = await arrived(inbox)
            await inbox.ack(first.id, durable=True)

        async def found(**sought: object) -> list[int]:
            selection = await broker.select("t", **sought)  # type: ignore[arg-type]
            assert selection.topic == "public/default/t"
            return list(selection.offsets.tolist())

        assert await found() == [1, 2, 3, 6, 7, 8, 9, 10, 11, 5]
        assert await found(due_from=now + 3 * HOUR, due_until=now + 7 * HOUR) == [3, 6]
        assert await found(due_from=now + 12 * HOUR) == [5]
        assert await found(key="k2") == [2, 8, 11, 5]
        assert await found(key="k2", properties={"parity": 1}) == [11, 5]
        assert await found(key="nothing") == []


async def test_message_with_two_delivery_times_is_selected_once(
    mock_clock: MockClock,
) -> None:
    """B1: the message has two places in the delivery order, and a dry run counts it once."""
    async with testing.start() as world, world.connect() as broker:
        now = await publish(world, broker, 2)
        async with broker.consumer("t", "s") as inbox:
            assert [message.offset for message in await arrived(inbox)] == [0]
            names = {"topic": "t", "subscription": "late"}
            await broker.admin("subscriptions.create", **names, position="earliest")
            (moved,) = await broker.reschedule([0], delay=3 * HOUR, topic="t")
            assert moved.done
            assert moved.handed == ("s",)
            assert (await broker.select("t")).offsets.tolist() == [1, 0]
            until = now + 2 * HOUR
            assert (await broker.select("t", due_until=until)).offsets.tolist() == [1]


async def test_message_rescheduled_during_a_selection_is_found(mock_clock: MockClock) -> None:
    """B1: the message is pending throughout, at its old or its new due time."""
    held = Held()
    config = uncached(BrokerConfig(seed=0))
    async with testing.start(run=held, config=config) as world, world.connect() as broker:
        await publish(world, broker, 6)
        await world.checkpoint()
        found: list[list[int]] = []

        async def look() -> None:
            found.append((await broker.select("t", key="k2")).offsets.tolist())

        async with trio.open_nursery() as nursery:
            with held.hold(KEYS):
                nursery.start_soon(look)
                await held.reached()
                await broker.reschedule([2], delay=HOUR, topic="t")
                await broker.reschedule([5], delay=9 * HOUR, topic="t")
        assert sorted(found[0]) == [2, 5]


async def test_key_is_found_by_its_hash_without_reading_other_messages(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B6: from disk, only the delivery order and a few message blocks are read."""
    read: list[tuple[int, int]] = []  # (bytes, messages), in each block

    def decode(name: str) -> None:
        kind = getattr(segment, name)
        original = kind.decode

        def counting(block: bytes, where: str) -> object:
            found = original(block, where)
            read.append(
                (len(block), len(found.columns.payloads.lengths) if name == "MessageBlock" else 0)
            )
            return found

        monkeypatch.setattr(kind, "decode", counting)

    count, rare = 40_000, [17, 20_000, 20_001]
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer:
            for low in range(0, count, 10_000):
                offsets = range(low, low + 10_000)
                await producer.send_many(
                    [b"." * 200] * 10_000,
                    keys=["rare" if n in rare else f"k{n % 5000}" for n in offsets],
                    delay=[timedelta(hours=1, milliseconds=n) for n in offsets],
                )
        await world.checkpoint()
        await world.crash()
        await world.restart()
        for name in ("KeyBlock", "TraitBlock", "MessageBlock"):
            decode(name)
        async with world.connect() as broker:
            assert (await broker.select("t", key="rare")).offsets.tolist() == rare
            in_blocks = sum(rows for _, rows in read)
            assert len(rare) <= in_blocks <= 2 * 4096
            assert sum(size for size, _ in read) < 20 * count + 2 * 4096 * 220 + 2000
            read.clear()
            assert [one.id.offset async for one in broker.peek("t", key="rare")] == rare
            assert sum(rows for _, rows in read) <= 2 * 4096
            read.clear()
            assert len(await broker.select("t", key="nobody")) == 0
            assert (
                sum(rows for _, rows in read) <= 4096
            )  # zero, unless another key has the same hash
            read.clear()
            assert len(await broker.select("t", properties={"no": "body"})) == 0
            assert sum(rows for _, rows in read) >= count - 2 * 4096  # the cache has some


async def test_all_messages_of_a_key_are_cancelled_or_rescheduled(
    mock_clock: MockClock,
) -> None:
    """B1: `cancel(key=…)` amends the messages that `select(key=…)` finds."""
    async with testing.start() as world, world.connect() as broker:
        await publish(world, broker, 12)
        outcomes = await broker.cancel(topic="t", key="k1")
        assert [(one.id.offset, one.status) for one in outcomes] == [
            (n, AmendStatus.DONE) for n in (1, 4, 7, 10)
        ]
        assert len(await broker.cancel(topic="t", key="k1")) == 0
        assert len(await broker.cancel(topic="t", key="nothing")) == 0
        outcomes = await broker.reschedule(topic="t", key="k2", delay=100 * HOUR)
        assert [one.id.offset for one in outcomes] == [2, 5, 8, 11]
        outcomes = await broker.run_now(topic="t", key="k0")
        assert [one.id.offset for one in outcomes] == [0, 3, 6, 9]
        async with broker.consumer("t", "s") as inbox:
            now = await arrived(inbox)
            assert sorted(message.offset for message in now) == [0, 3, 6, 9]
            await inbox.ack(now, durable=True)
            await world.clock.advance(hours=99)
            assert await arrived(inbox) == []
            await world.clock.advance(hours=1, seconds=1)
            assert [message.offset for message in await arrived(inbox)] == [2, 5, 8, 11]
        for wrong in ({"key": "k"}, {"key": "", "topic": "t"}):
            with pytest.raises(escapement.InvalidRequest, match="needs topic"):
                await broker.cancel(**wrong)
        for more in ({"what": [1]}, {"dedup": "d"}):
            with pytest.raises(escapement.InvalidRequest, match="needs topic"):
                await broker.run_now(topic="t", key="k", **more)  # type: ignore[arg-type]


async def test_selection_is_amended_as_a_whole(mock_clock: MockClock) -> None:
    """B1: a selection is fixed, so rescheduling it does not select its messages again."""
    async with testing.start() as world, world.connect() as broker:
        await publish(world, broker, 40)
        selection = await broker.select("t", key="k1")
        assert len(selection) == 13
        assert [len(part) for part in selection.parts()] == [13]
        moved = await broker.reschedule(selection, delay=30 * HOUR)
        assert moved.done.all()
        again = await broker.select("t", key="k1")
        assert again.offsets.tolist() == selection.offsets.tolist()
        outcomes = await broker.cancel(again)
        assert {outcome.status for outcome in outcomes} == {AmendStatus.DONE}
        assert len(await broker.select("t", key="k1")) == 0
        await world.clock.advance(hours=50)
        async with broker.consumer("t", "s") as inbox:
            offsets = [message.offset for message in await arrived(inbox)]
        assert offsets == [n for n in range(40) if n % 3 != 1]


async def test_selection_reports_progress_page_by_page(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: a selection of one page reports no progress."""
    async with testing.start() as world, world.connect() as broker:
        await publish(world, broker, 12)
        told: list[int] = []
        assert len(await broker.select("t", progress=told.append)) == 12
        assert told == []
        monkeypatch.setattr(search, "_STEP_KEYS", 5)
        monkeypatch.setattr(search, "PAGE", search.PAGE._replace(keys=5))
        assert len(await broker.select("t", progress=told.append)) == 12
        assert told == sorted(told)
        assert told[0] < 12
