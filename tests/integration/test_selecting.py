"""Selecting pending messages by time, key and property, to change all of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from trio.testing import MockClock

import escapement
from escapement import Fate, testing
from escapement.testing import World, arrived

HOUR = timedelta(hours=1)


async def publish(world: World, broker: escapement.Broker, count: int) -> datetime:
    """Message n is due in n hours, its key is n % 3; returns now."""
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
    """B1: in delivery order, without what is done, cancelled, or due at another time by now."""
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


async def test_what_is_selected_is_changed_as_a_whole(mock_clock: MockClock) -> None:
    """B1: a selection is what there was; moving it does not meet it again."""
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
        assert {outcome.fate for outcome in outcomes} == {Fate.DONE}
        assert len(await broker.select("t", key="k1")) == 0
        await world.clock.advance(hours=50)
        async with broker.consumer("t", "s") as inbox:
            offsets = [message.offset for message in await arrived(inbox)]
        assert offsets == [n for n in range(40) if n % 3 != 1]
