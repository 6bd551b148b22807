"""How a message ended in its subscriptions, as far as the broker can tell."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.inbox import dead_letters
from escapement.console.reading.endings import LOOK_S, Endings
from escapement.testing import World, arrived

NAMES = {"topic": "orders", "subscription": "s"}


async def give_up(world: World, broker: escapement.Broker, count: int) -> None:
    """Publish messages, and acknowledge the first. The others become dead letters."""
    await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
    producer = await broker.producer("orders")
    await producer.send_many([b"m"] * count, keys=["a\\b"] * count)
    async with broker.consumer("orders", "s") as inbox:
        first, *others = await arrived(inbox)
        await inbox.ack([first])
        await inbox.nack(others)
        await world.clock.advance(seconds=5)


async def show(broker: escapement.Broker, offset: int) -> Any:
    return await broker.admin("messages.show", topic="orders", offset=offset)


async def test_page_that_follows_a_message_stops_looking_for_a_dead_letter(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: pages that stay open cost the broker no searches. A page that is loaded again looks."""
    async with testing.start() as world, world.connect() as broker:
        await give_up(world, broker, 2)
        endings = Endings()
        acked, dead = await show(broker, 0), await show(broker, 1)
        looks = [(await endings.of(broker, acked, again=bool(n)))["s"].looks for n in range(5)]
        assert looks == [1, 2, 3, 3, 3]
        assert [(await endings.of(broker, dead, again=bool(n)))["s"].looks for n in range(2)] == [
            1,
            1,
        ]
        await broker.admin("dlq.purge", **NAMES)
        (kept,) = (await endings.of(broker, dead, again=True))["s"].letters
        assert (kept["original_offset"], "payload" in kept) == (1, False)
        gone = (await endings.of(broker, dead, again=False))["s"]
        assert (gone.letters, gone.is_whole, gone.gap) == ([], True, "")


async def test_page_says_how_far_it_looked(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: a long list of dead letters makes no page wait. The page says so."""
    monkeypatch.setattr(dead_letters, "_FIND", dead_letters._FIND._replace(messages=1))
    monkeypatch.setattr("escapement.broker.inspection.search._STEP_KEYS", 2)
    async with testing.start() as world, world.connect() as broker:
        await give_up(world, broker, 8)
        ending = (await Endings().of(broker, await show(broker, 7), again=False))["s"]
        assert (ending.letters, ending.is_whole) == ([], False)
        assert 0 < ending.looked < 7
        assert ending.gap.startswith(f"It is none of the first {ending.looked} dead letters")


async def test_page_does_not_wait_for_a_broker_that_does_not_answer(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the rest of the page is shown in time, and says that the ending is not known."""
    async with testing.start() as world, world.connect() as broker:
        await give_up(world, broker, 2)
        message, endings, took_s = await show(broker, 1), Endings(), []

        async def ask() -> None:
            began_s = trio.current_time()
            ending = (await endings.of(broker, message, again=False))["s"]
            took_s.append(trio.current_time() - began_s)
            assert ending.letters == ()
            assert "not known: no broker has answered" in ending.gap

        await world.crash()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await world.clock.advance(seconds=LOOK_S, ms=1)
        assert took_s == [pytest.approx(LOOK_S, abs=0.01)]
        await world.restart()
        await world.clock.advance(minutes=1)
        assert len((await endings.of(broker, message, again=True))["s"].letters) == 1
