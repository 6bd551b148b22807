"""Whether a publish is refused because a quota is full."""

from __future__ import annotations

import trio
import trio.testing

import escapement
from escapement.errors import BacklogFull
from escapement.testing import World


async def refused(world: World, broker: escapement.Broker) -> bool:
    """Whether a message is refused now; it has its own producer, whose patience is short."""
    await world.clock.advance(seconds=1)  # the backlog is counted anew
    return await refused_at_once(world, broker)


async def refused_at_once(world: World, broker: escapement.Broker) -> bool:
    """The same by what was counted last."""
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
