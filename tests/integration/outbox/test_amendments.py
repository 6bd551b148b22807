"""Cancels and reschedules in transactions of an application, in a whole broker on a virtual clock.

The application's database is on a real server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from escapement.sql import cancel, reschedule
from escapement.testing import World
from support.outbox.outboxes import Application, serving

MockClock = trio.testing.MockClock
HOUR_MS = 3_600_000


async def take_turns(world: World) -> None:
    """Let the relays move and carry out all rows of the outbox."""
    await world.clock.advance(seconds=5)


async def delivered(world: World, topic: str = "t", hours: int = 3) -> list[bytes]:
    """Return the payloads of the topic that are delivered in the next hours, in order."""
    found: list[bytes] = []

    async def consume() -> None:
        async for message in consumer:
            found.append(message.payload)
            await message.ack()

    async with (
        world.connect() as broker,
        broker.consumer(topic, "s", position="earliest") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consume)
        await world.clock.advance(hours=hours)
        nursery.cancel_scope.cancel()
    return found


@asynccontextmanager
async def shop(application: Application, **options: Any) -> AsyncIterator[World]:
    """Run a broker whose virtual clock begins with the time of the application's database."""
    start_ms = int(application.run("SELECT UNIX_TIMESTAMP() * 1000")[0][0])
    async with serving(application, start_ms=start_ms, **options) as world:
        yield world


NAMES = pytest.mark.parametrize("name", ["key", "dedup", "id", "offset"])


def named(name: str, offset: int) -> dict[str, str | int]:
    return {
        "key": {"key": f"k{offset}"},
        "dedup": {"dedup": f"d{offset}"},
        "id": {"id": f"public/default/t@{offset}"},
        "offset": {"id": offset},
    }[name]


@NAMES
async def test_committed_cancel_of_a_waiting_message_takes_effect(
    name: str, application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        for n in range(3):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}", delay="1h")
        await take_turns(world)
        with application.session() as cursor:
            cancel(cursor, "t", **named(name, 1))  # type: ignore[arg-type]
            await take_turns(world)
            cursor.connection.commit()
        await take_turns(world)
        assert application.left == 0
        assert await delivered(world) == [b"0", b"2"]


@NAMES
async def test_rolled_back_cancel_has_no_effect(
    name: str, application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        for n in range(3):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}", delay="1h")
        await take_turns(world)
        with application.session() as cursor:
            cancel(cursor, "t", **named(name, 1))  # type: ignore[arg-type]
            cursor.connection.rollback()
        await take_turns(world)
        assert await delivered(world) == [b"0", b"1", b"2"]


@NAMES
async def test_committed_reschedule_of_a_waiting_message_takes_effect(
    name: str, application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        for n in range(3):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}", delay="90m")
        await take_turns(world)
        with application.session() as cursor:
            reschedule(cursor, "t", delay="150m", **named(name, 1))  # type: ignore[arg-type]
            cursor.connection.commit()
        await take_turns(world)
        assert await delivered(world, hours=2) == [b"0", b"2"]
        assert await delivered(world, hours=1) == [b"1"]
