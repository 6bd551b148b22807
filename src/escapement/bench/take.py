"""The measured consumer, which takes messages until all have arrived or none arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from escapement.bench.stage import now_ms
from escapement.bench.tally import Tally
from escapement.client.consuming.inbox import Inbox

# If no message arrives for this long after one may be due, the missing ones count as lost.
TIMEOUT_S: Final = 20.0
# The clock is read once per this many messages: reading it each time would slow the consumer.
_STEP: Final = 1024

# Takes until the tally has this many messages, or none arrives for a patience in seconds.
Take = Callable[[Inbox, Tally, int, float], Awaitable[None]]


async def take_batches(inbox: Inbox, tally: Tally, messages: int, timeout_s: float) -> None:
    """Take whole batches, and acknowledge each as a whole."""
    while tally.received < messages:
        batch = await inbox.next_batch(timeout_s)
        if batch is None:
            return
        tally.add(batch.offsets, batch.due_ms)
        await batch.ack()


def take_batches_failing(percent: int, back_off_ms: int) -> Take:
    """Return a variant of ``take_batches`` that fails the first attempt of ``percent`` %.

    These messages are nacked, and wait ``back_off_ms`` for the next attempt.
    """

    async def take(inbox: Inbox, tally: Tally, messages: int, timeout_s: float) -> None:
        while tally.received < messages:
            batch = await inbox.next_batch(timeout_s)
            if batch is None:
                return
            failed = (batch.attempts == 1) & (batch.offsets % 100 < percent)
            if failed.any():
                await inbox.nack(batch.offsets[failed], (back_off_ms, "ms"))
                tally.failed += int(failed.sum())
            if not failed.all():
                tally.add(batch.offsets[~failed], batch.due_ms[~failed])
                await inbox.ack(batch.offsets[~failed])

    return take


async def take_one_by_one(inbox: Inbox, tally: Tally, messages: int, timeout_s: float) -> None:
    """Take single messages with ``async for``, and acknowledge each with its own block."""
    if tally.received >= messages:
        return
    with trio.move_on_after(timeout_s) as patience:
        async for message in inbox:
            async with message:
                tally.add_one(message.offset, message.due_ms, message.payload)
            if tally.received % _STEP == 0:
                patience.deadline = trio.current_time() + timeout_s
            if tally.received >= messages:
                return


async def take_all(
    take: Take, inbox: Inbox, tally: Tally, messages: int, window_ms: int = 0
) -> int:
    """Take until each message sent has arrived and all acknowledgements are durable.

    Duplicates do not make up for missing messages. ``window_ms`` is the longest time in which no
    message is due.

    Returns:
      The time of the end, in milliseconds of the wall clock.
    """
    timeout_s = TIMEOUT_S + window_ms / 1000
    while True:
        await take(inbox, tally, messages, timeout_s)
        await inbox.flush_acks()
        done_ms = now_ms()
        missing = tally.lost()
        if not missing or tally.received < messages:
            return done_ms
        messages = tally.received + missing
