"""Sending of batches whose messages have dedup keys, until their receipts come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import trio

import escapement
from escapement.errors import EscapementError
from simulation.clocks import HOUR_S
from simulation.history import Message, payload_of
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
    for _ in range(_TRIES):
        try:
            async with world.connect(world.bundle_of(topic)) as client:
                producer = await client.producer(topic)
                receipts = await producer.send_many(
                    [payload_of(message.number) for message in messages],
                    delay=np.array(delays_ms),
                    dedup=[f"d{message.number}" for message in messages],
                    **columns,
                )
        except EscapementError as error:
            if not error.retryable:
                raise
        else:
            # A producer may learn only that it had sent the message. Dedup keys give its id.
            if all(receipt.id is not None for receipt in receipts):
                _confirm(world, messages, receipts)
                return receipts
        await trio.sleep(rng.uniform(1, 3 * HOUR_S))
    raise AssertionError("a batch could not be sent in many tries")


def _confirm(world: World, messages: Sequence[Message], receipts: escapement.Receipts) -> None:
    for message, receipt in zip(messages, receipts, strict=True):
        assert receipt.id is not None
        if not receipt.kept:  # else the receipt names another message
            world.history.confirm(message, receipt.id.offset)
