"""Creation of many topics in one call."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio

import escapement
from escapement import testing
from escapement.storage.engine.base import Engine

NAMES = [f"t/n/{number}" for number in range(1200)]


async def test_topics_are_created_once_each_with_a_subscription(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B5: more topics than one statement creates, in two namespaces. Some exist already."""
    async with testing.start(engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("topics.create", topic="t/n/7")
            names = [*NAMES, "t/other/x", "t/n/3"]
            answer = await broker.admin("topics.create_many", topics=names, subscription="s")
            assert answer == {"created": 1200, "existed": 1}
            answer = await broker.admin("topics.create_many", topics=names, subscription="s")
            assert answer == {"created": 0, "existed": 1201}
        await world.crash()
        await world.restart()
        async with world.connect() as broker:
            await world.clock.advance(seconds=5)
            listed = await broker.admin("topics.list")
            assert listed["topics"] == sorted({*NAMES, "t/other/x"})
            rows = await broker.admin("subscriptions.list", topic="t/n/7")
            assert rows == []  # the topic existed before
            (row,) = await broker.admin("subscriptions.list", topic="t/n/8")
            assert (row["subscription"], row["kind"]) == ("s", "shared")


async def test_subscription_of_a_new_topic_gets_its_first_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: with or without a delay, although the topic has never been active."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("topics.create_many", topics=["t"], subscription="s")
        assert not world.server.registry.active
        async with await broker.producer("t") as producer:
            await producer.send_many([b"now", b"later"], delay=[None, timedelta(hours=1)])
        async with broker.consumer("t", "s") as inbox:
            assert [m.payload for m in await testing.arrived(inbox)] == [b"now"]
            await world.clock.advance(hours=1)
            assert b"later" in [m.payload for m in await testing.arrived(inbox)]


async def test_concurrent_calls_create_each_topic_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B5: some calls create a single topic, others many."""
    async with testing.start() as world, world.connect() as broker:
        answers: list[dict[str, int]] = []
        refused = 0

        async def many() -> None:
            answers.append(await broker.admin("topics.create_many", topics=NAMES[:50]))

        async def one(name: str) -> None:
            nonlocal refused
            try:
                await broker.admin("topics.create", topic=name)
            except escapement.AlreadyExists:
                refused += 1

        async with trio.open_nursery() as nursery:
            for name in NAMES[:50:3]:
                nursery.start_soon(one, name)
            for _ in range(3):
                nursery.start_soon(many)
        created = sum(answer["created"] for answer in answers) + len(NAMES[:50:3]) - refused
        assert created == 50
        assert all(answer["created"] + answer["existed"] == 50 for answer in answers)
        assert (await broker.admin("topics.list"))["total"] == 50


@pytest.mark.parametrize("topics", [[], "t", [1], ["a/b"], ["x"] * 10_001])
async def test_anything_but_a_list_of_topics_is_refused(
    topics: object, mock_clock: trio.testing.MockClock
) -> None:
    """B5: nothing is created."""
    async with testing.start() as world, world.connect() as broker:
        with pytest.raises(escapement.InvalidRequest):
            await broker.admin("topics.create_many", topics=topics)
        assert (await broker.admin("topics.list"))["total"] == 0
