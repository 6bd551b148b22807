"""A client that lists dead letters and redrives some of them."""

from __future__ import annotations

import trio

import escapement
from escapement.errors import EscapementError
from stress.history import number_of
from stress.world import WITH_DEAD_LETTERS, World, passes
from support.processes.broker import PATIENT


async def list_dead_letters(world: World, client: escapement.Broker) -> None:
    """Note all dead letters."""
    for name, topic in WITH_DEAD_LETTERS.items():
        rows = await client.admin("dlq.list", topic=topic, subscription=name, count=1_000)
        assert len(rows) < 1_000, "more dead letters than one listing shows"
        listed = {
            row["offset"]: (number_of(row["payload"]), row["original_offset"]) for row in rows
        }
        world.history.list_dead_letters(name, listed)


async def redrive(world: World) -> None:
    """Redrive half of the dead letters, again and again."""
    async with escapement.connect(world.url, settings=PATIENT) as client:
        while not world.over:
            await trio.sleep(world.chance.uniform(0, 3))
            try:
                await list_dead_letters(world, client)
                for name, topic in WITH_DEAD_LETTERS.items():
                    dead_letters = world.history.dead_letters[name]
                    chosen = sorted(
                        o for o in dead_letters.remaining if world.chance.random() < 0.5
                    )
                    if chosen:
                        dead_letters.asked |= set(chosen)
                        await client.admin(
                            "dlq.redrive", topic=topic, subscription=name, offsets=chosen
                        )
                        world.history.counts["redriven"] += len(chosen)
            except EscapementError as error:
                if not passes(error):
                    raise
                world.history.counts["redrives without an answer"] += 1
