"""Messages with properties that take long to decode, shown in small answers that take turns."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgpack
import trio
from trio.testing import MockClock

from escapement import testing
from escapement.broker.access.caller import Caller
from escapement.broker.admin import Admin
from escapement.broker.broker import BrokerConfig
from escapement.broker.inspection.peek import PAGE_TEXT_BYTES
from support.faults.held_calls import Held

CONFIG = BrokerConfig(ack_wait_ms=60_000, seed=0)
LARGE = {"a": [str(10 + number % 90) for number in range(2_600)]}
TOO_LARGE = {"a": [0] * PAGE_TEXT_BYTES}


async def test_page_of_a_peek_ends_early_if_its_properties_are_large(mock_clock: MockClock) -> None:
    """B6, invariant 9: the pages together have all messages that match, each once."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        for number in range(60):
            await producer.send(
                b"",
                delay=timedelta(hours=1 + number % 7),
                key=f"k{number % 2}",
                properties=LARGE | {"third": number % 3} if number % 5 else {"third": number % 3},
            )
            if number == 40:
                await world.checkpoint()
        order = sorted(range(60), key=lambda number: (number % 7, number))
        for sought, step in (
            ({}, 1),
            ({"key": "k0"}, 2),
            ({"properties": {"third": 0}}, 3),
        ):
            seen: list[int] = []
            after = None
            pages = 0
            while pages == 0 or after is not None:
                page = await broker.admin(
                    "topics.peek", topic="x", count=1_000, after=after, **sought
                )
                messages = page["messages"]
                text_bytes = sum(
                    len(one["key"]) + len(msgpack.packb(one["properties"])) for one in messages
                )
                assert text_bytes <= PAGE_TEXT_BYTES
                seen += [one["offset"] for one in messages]
                pages, after = pages + 1, page["next"]
            assert seen == [number for number in order if number % step == 0]
            assert pages > 60 * 4 // 5 // step * 7_800 // PAGE_TEXT_BYTES
        assert [one.id.offset async for one in broker.peek("x", count=20)] == order[:20]


async def test_properties_too_large_to_show_are_counted(mock_clock: MockClock) -> None:
    """B6, invariant 9: in a page of its own, the message shows how large they are."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        for properties in ({"n": 1}, TOO_LARGE, {"n": 2}):
            await producer.send(b"m", delay=timedelta(hours=1), properties=properties)
        size = len(msgpack.packb(TOO_LARGE))
        counted = {"": f"{size} bytes; read or consume the message to see them"}
        expected = [{"n": 1}, counted, {"n": 2}]
        assert [one.properties async for one in broker.peek("x")] == expected
        page = await broker.admin("topics.peek", topic="x")
        assert [one["offset"] for one in page["messages"]] == [0]
        assert (await broker.admin("messages.show", topic="x", offset=1))["properties"] == counted


async def test_properties_are_searched_beside_the_event_loop(mock_clock: MockClock) -> None:
    """B6, invariant 9: also those of messages in memory, which are read without a thread."""
    held = Held()
    async with testing.start(config=CONFIG, run=held) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send_many([b"m"] * 9, delay=timedelta(hours=1), properties=[LARGE] * 9)
        found: list[Any] = []

        async def select() -> None:
            found.append(await broker.select("x", properties=LARGE))

        async with trio.open_nursery() as nursery:
            with held.hold("Search._read"):
                nursery.start_soon(select)
                await held.reached()
        assert [len(one) for one in found] == [9]


async def test_large_answers_are_made_one_in_a_turn_of_the_event_loop(
    mock_clock: MockClock,
) -> None:
    """Invariant 9: other tasks run between two of them."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        producer = await broker.producer("x")
        await producer.send_many([b"m"] * 9, delay=timedelta(hours=1), properties=[LARGE] * 9)
        admin, caller, made = Admin(world.server), Caller(world.server.services.access), 0
        await caller.admit("")

        async def ask(verb: str, **arguments: Any) -> None:
            nonlocal made
            await admin.carry_out(verb, arguments, caller)
            made += 1

        asked: tuple[tuple[str, dict[str, Any]], ...] = (
            ("topics.peek", {"topic": "x"}),
            ("messages.show", {"topic": "x", "offset": 1}),
            ("dlq.list", {"topic": "x", "subscription": "s"}),
            ("topics.list", {}),
            ("topics.stats", {"topic": "x"}),
            ("subscriptions.list", {"topic": "x"}),
            ("groups.list", {"topic": "x"}),
            ("namespaces.list", {}),
            ("schedules.list", {}),
            ("inbox.list", {}),
            ("jobs.list", {}),
        )
        for verb, more in asked:
            made, most = 0, 0
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(partial(ask, verb, **more))
                while made < 10:
                    before = made
                    await trio.lowlevel.checkpoint()
                    most = max(most, made - before)
            assert most <= 2, verb  # this task may run first in a turn and last in the next one
