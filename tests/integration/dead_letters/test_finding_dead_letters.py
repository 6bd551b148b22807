"""The dead letters that a message has become are found by the message."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.inbox import dead_letters
from escapement.testing import arrived

X = {"topic": "x", "subscription": "s"}
SHARED_DLQ = {"max_deliveries": 1, "dead_letter_topic": "failed"}


async def find(broker: escapement.Broker, offset: int, **given: Any) -> list[dict[str, Any]]:
    """Return all dead letters of a message, from as many requests as it takes."""
    found, after = [], None
    while True:
        page = await broker.admin("dlq.find", **{**X, **given}, offset=offset, after=after)
        found += page["dead_letters"]
        after = page["next"]
        if after is None:
            return found


async def test_dead_letters_of_a_message_are_found(mock_clock: trio.testing.MockClock) -> None:
    """V1: only those of this message and subscription, by key too, until they are sent back."""
    async with testing.start() as world, world.connect() as broker:
        for subscription in ("s", "other"):
            names = X | {"subscription": subscription}
            await broker.admin("subscriptions.create", **names, policy=SHARED_DLQ)
        assert await find(broker, 0) == []  # before the first dead letter creates the topic
        producer = await broker.producer("x")
        began_ms = world.clock.now_ms()
        await producer.send_many([b"acked", b"a", b"b", b"c"], keys=["k", "k", "l", None])
        async with broker.consumer("x", "other") as inbox:
            await inbox.nack(await arrived(inbox))
        async with broker.consumer("x", "s") as inbox:
            acked, first, *rest = await arrived(inbox)
            await inbox.ack([acked])
            await first.reject("no such shop")
            await inbox.nack(rest)
            await world.clock.advance(seconds=5)
        (letter,) = await find(broker, 1, from_ms=began_ms, key="k")
        assert (letter["reason"], letter["detail"]) == ("rejected", "no such shop")
        assert (letter["original_offset"], letter["subscription"]) == (1, "s")
        assert [one["payload"] for one in await find(broker, 3)] == [b"c"]
        assert await find(broker, 0, key="k") == []
        assert await find(broker, 1, key="l") == []
        assert await find(broker, 1, from_ms=world.clock.now_ms()) == []
        # After a seek, the subscription gives the message up a second time.
        await broker.admin("subscriptions.seek", **X, position="earliest")
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack(await arrived(inbox))
            await world.clock.advance(seconds=5)
        assert [one["reason"] for one in await find(broker, 1)] == ["rejected", "nack"]
        await broker.admin("dlq.purge", **X, offsets=[letter["offset"]])
        assert [one["reason"] for one in await find(broker, 1)] == ["nack"]
        await broker.admin("dlq.redrive", **X)
        await world.clock.advance(seconds=5)
        assert await find(broker, 1) == []
        there = {"subscription": "other", "dead_letter_topic": "failed"}
        assert [one["payload"] for one in await find(broker, 1, **there)] == [b"a"]


@pytest.mark.parametrize(
    "bounds",
    [{"messages": 2}, {"keys": 2}, {"size_bytes": 1}],
)
async def test_each_request_looks_at_a_bounded_number_of_dead_letters(
    bounds: dict[str, int], mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: so the page of a message never waits for a long search. ``next`` continues it."""
    monkeypatch.setattr(dead_letters, "_FIND", dead_letters._FIND._replace(**bounds))
    monkeypatch.setattr("escapement.broker.inspection.search._STEP_KEYS", 2)
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **X, policy={"max_deliveries": 1})
        await (await broker.producer("x")).send_many([b"m%d" % n for n in range(8)])
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack(await arrived(inbox))
            await world.clock.advance(seconds=5)
        page = await broker.admin("dlq.find", **X, offset=7)
        assert page["dead_letters"] == []
        assert page["looked"] < 8
        assert page["next"] is not None
        assert [one["payload"] for one in await find(broker, 7)] == [b"m7"]
