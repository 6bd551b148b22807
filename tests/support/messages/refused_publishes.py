"""A check whether a full quota refuses a publish."""

from __future__ import annotations

import trio
import trio.testing

import escapement
from escapement.errors import BacklogFull
from escapement.testing import World


async def refused(world: World, broker: escapement.Broker) -> bool:
    """Return whether a message is refused, once the broker has counted the backlog again."""
    await world.clock.advance(seconds=1)  # the broker counts the backlog again
    return await refused_at_once(world, broker)


async def refused_at_once(world: World, broker: escapement.Broker) -> bool:
    """Return whether a message is refused by the last count of the backlog."""
    producer = await broker.producer("x", linger="0ms", send_timeout="100ms")
    answers: list[bool] = []

    async def send() -> None:
        try:
            await producer.send(b"one more")
        except BacklogFull:
            answers.append(True)
        else:
            answers.append(False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await world.clock.advance(ms=200)
    return answers == [True]
