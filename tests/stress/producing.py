"""Producers: numbered batches and dedup keys, delays of up to a minute."""

from __future__ import annotations

from typing import Final

import numpy as np
import trio

import escapement
from escapement.errors import EscapementError
from stress.history import now_ms, payload_of
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
    delays = [draw_delay_ms(world) for _ in range(BATCH)]
    began_ms = now_ms()
    numbers = [
        world.history.publish(topic, began_ms + d, world.chance.random() < POISON_SHARE)
        for d in delays
    ]
    values = [payload_of(number, world.chance.randint(*SIZES)) for number in numbers]
    keys = [f"k{world.chance.randrange(40)}" for _ in numbers]
    dedup = [f"d{number}" for number in numbers] if with_dedup else None
    for _ in range(2 if with_dedup else 1):
        receipts = await producer.send_many(values, delay=np.array(delays), keys=keys, dedup=dedup)
    for number, receipt in zip(numbers, receipts, strict=True):
        world.history.confirm(number, receipt.id.offset if receipt.id else -1)
