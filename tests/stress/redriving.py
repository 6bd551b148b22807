"""A client that lists dead letters and redrives some of them."""

from __future__ import annotations

import trio

import escapement
from escapement.errors import EscapementError
from histories.recording import list_dead_letters, redrive
from stress.world import WITH_DEAD_LETTERS, World, passes
from support.processes.broker import PATIENT


async def list_all(world: World, client: escapement.Broker) -> None:
    """Note all dead letters."""
    for name, topic in WITH_DEAD_LETTERS.items():
        await list_dead_letters(world.history, client, topic, name)


async def redrive_some(world: World) -> None:
    """Redrive half of the dead letters, again and again."""
    history = world.history
    async with escapement.connect(world.url, settings=PATIENT) as client:
        while not world.over:
            await trio.sleep(world.chance.uniform(0, 3))
            try:
                await list_all(world, client)
                for name, topic in WITH_DEAD_LETTERS.items():
                    remaining = sorted(history.dead_letters[name].remaining)
                    if chosen := [one for one in remaining if world.chance.random() < 0.5]:
                        await redrive(history, client, topic, name, chosen)
            except EscapementError as error:
                if not passes(error):
                    raise
                history.counts["redrives without an answer"] += 1
