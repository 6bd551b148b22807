"""The memory of messages that are being rescheduled, while they wait for commit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from escapement import testing
from support.faults.held_calls import COMMIT, Held

COUNT: Final = 6
LARGE_BYTES: Final = 4 << 20


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
async def test_waiting_reschedules_take_only_the_memory_that_is_counted(
    mock_clock: MockClock,
) -> None:
    """Invariant 9: the bytes that wait for commit are bounded, so none may be uncounted."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        producer = await broker.producer("t")
        for number in range(COUNT):
            await producer.send(bytes([number]) * LARGE_BYTES, delay="2h")

        async def move(offset: int) -> None:
            await broker.reschedule([offset], topic="t", delay=timedelta(hours=1))

        for offset in range(COUNT):
            await move(offset)  # now the cache of log rows is full
        before_bytes, _ = tracemalloc.get_traced_memory()
        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                for offset in range(COUNT):
                    nursery.start_soon(move, offset)
                await trio.testing.wait_all_tasks_blocked()
                waiting_bytes = world.server.stats()["waiting_bytes"]
                held_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
        assert waiting_bytes >= COUNT * LARGE_BYTES
        assert held_bytes < 1.1 * waiting_bytes
