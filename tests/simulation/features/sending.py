"""Sending of batches whose messages have dedup keys, until their receipts come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import trio

import escapement
from escapement.errors import EscapementError
from histories.history import Message
from histories.recording import send
from simulation.clocks import HOUR_S
from simulation.world import World

# How long a client keeps trying to learn whether a batch is stored.
_TRIES: Final = 40


async def send_surely(
    world: World,
    rng: random.Random,
    messages: Sequence[Message],
    delays_ms: Sequence[int],
    **columns: Any,
) -> escapement.Receipts:
    """Send messages of one topic, again while their fate is unknown.

    Args:
      columns: further arguments of ``Producer.send_many``.

    Returns:
      The receipts. A message that an earlier try has stored is a duplicate.
    """
    topic = messages[0].topic
    batch = list(zip(messages, delays_ms, strict=True))
    dedup = [f"d{message.number}" for message in messages]
    for _ in range(_TRIES):
        try:
            async with world.connect() as client:
                producer = await client.producer(topic)
                receipts = await send(world.history, producer, batch, dedup=dedup, **columns)
            # A producer may learn only that it had sent the message. Dedup keys give its id.
            if all(receipt.id is not None for receipt in receipts):
                return receipts
        except EscapementError as error:
            if not error.retryable:
                raise
        await trio.sleep(rng.uniform(1, 3 * HOUR_S))
    raise AssertionError("a batch could not be sent in many tries")
