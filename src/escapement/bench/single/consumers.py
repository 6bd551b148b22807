"""Many consumers at once, each in a task of its own, spread over connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from escapement.bench.take import TIMEOUT_S
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.consuming.inbox import Inbox

# The work of a consumer, called with its inbox and its number. It ends by being cancelled.
Use = Callable[[Inbox, int], Awaitable[None]]

# The number of connections that open their consumers at the same time. More would make the broker
# too busy to answer each of them in time.
_OPENING: Final = 20


class Crowd(NamedTuple):
    """A number of consumers, and how they connect."""

    consumers: int
    connections: int  # the consumers take turns on them
    permits: int  # the size of each consumer's delivery buffer, in messages


@asynccontextmanager
async def consumers(
    url: str, topic: str, subscription: Callable[[int], str], crowd: Crowd, use: Use
) -> AsyncIterator[list[Inbox]]:
    """Open all consumers, let each one run ``use``, and yield when all are open.

    At the end of the ``async with`` block ``use`` is cancelled, and the consumers close.

    Args:
      subscription: returns the subscription of a consumer by its number.
    """
    inboxes: list[Inbox] = []
    scopes: list[trio.CancelScope] = []
    all_open = trio.Event()
    opening = trio.Semaphore(_OPENING)

    async def attend(
        broker: Broker, number: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        name = subscription(number)
        async with broker.consumer(topic, name, permits=crowd.permits) as inbox:
            with trio.CancelScope() as scope:
                inboxes.append(inbox)
                scopes.append(scope)
                if len(inboxes) == crowd.consumers:
                    all_open.set()
                task_status.started()
                await use(inbox, number)

    async def connection(first: int) -> None:
        await opening.acquire()
        async with connect(url) as broker, trio.open_nursery() as nursery:
            for number in range(first, crowd.consumers, crowd.connections):
                await nursery.start(attend, broker, number)
            opening.release()

    async with trio.open_nursery() as nursery:
        for first in range(crowd.connections):
            nursery.start_soon(connection, first)
        await all_open.wait()
        yield inboxes
        for scope in scopes:
            scope.cancel()


async def finish(done: trio.Event, progress: Callable[[], int]) -> None:
    """Wait for ``done``. Give up if ``progress`` returns the same number for ``TIMEOUT_S``."""
    while not done.is_set():
        before = progress()
        with trio.move_on_after(TIMEOUT_S):
            await done.wait()
        if progress() == before:
            return
