"""Producers: numbered batches and dedup keys, delays of up to a minute."""

from __future__ import annotations

from typing import Final

import trio

import escapement
from escapement.errors import EscapementError
from histories.recording import send
from stress.world import World, passes
from support.processes.broker import PATIENT

BATCH: Final = 20
POISON_SHARE: Final = 0.05
SIZES: Final = (200, 2_000)


def draw_delay_ms(world: World) -> int:
    """Return a delay: none, some, or long enough to outlive its generation of the log."""
    most_ms = world.chance.choice([0, 500, 3_000, 10_000, world.longest_ms])
    return world.chance.randint(0, min(most_ms, world.longest_ms))


async def produce(world: World, topic: str, name: str | None) -> None:
    """Publish until the run is over; without a name, twice under dedup keys."""
    async with escapement.connect(world.url, settings=PATIENT) as client:
        producer = await client.producer(topic, name=name)
        while not world.over:
            try:
                await _publish(world, producer, topic, with_dedup=name is None)
            except EscapementError as error:
                if not passes(error):
                    raise
                world.history.counts["publishes without a receipt"] += 1
                producer = await client.producer(topic, name=name)
            await trio.sleep(world.chance.uniform(0, 2 * world.publish_pause_s))


async def _publish(
    world: World, producer: escapement.Producer, topic: str, with_dedup: bool
) -> None:
    batch = []
    for _ in range(BATCH):
        delay_ms = draw_delay_ms(world)
        key = f"k{world.chance.randrange(40)}"
        message = world.history.publish(topic, key, world.history.now_ms() + delay_ms)
        message.poison = world.chance.random() < POISON_SHARE
        message.size_bytes = world.chance.randint(*SIZES)
        batch.append((message, delay_ms))
    dedup = [f"d{message.number}" for message, _ in batch] if with_dedup else None
    for _ in range(2 if with_dedup else 1):
        await send(world.history, producer, batch, dedup=dedup)
