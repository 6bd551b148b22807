"""The measured consumer: takes and acknowledges until all is there, or nothing comes any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from escapement.bench.stage import now_ms
from escapement.bench.tally import Tally
from escapement.client.inbox import Inbox

# Without a message for so long after one may be due, what is missing is taken for lost.
PATIENCE_S: Final = 20.0
# Asking for the time for each message would be measured with it.
_STEP: Final = 1024

# Takes until the tally has so many, or the patience for the next, in seconds, is at an end.
Take = Callable[[Inbox, Tally, int, float], Awaitable[None]]


async def take_batches(inbox: Inbox, tally: Tally, messages: int, patience_s: float) -> None:
    """By whole batches, acknowledging each as a whole."""
    while tally.received < messages:
        batch = await inbox.next_batch(patience_s)
        if batch is None:
            return
        tally.add(batch.offsets, batch.due_ms)
        await batch.ack()


def take_batches_failing(percent: int, back_off_ms: int) -> Take:
    """As ``take_batches``, but so many in a hundred fail on their first attempt.

    They are given back, and wait ``back_off_ms`` for the next.
    """

    async def take(inbox: Inbox, tally: Tally, messages: int, patience_s: float) -> None:
        while tally.received < messages:
            batch = await inbox.next_batch(patience_s)
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


async def take_one_by_one(inbox: Inbox, tally: Tally, messages: int, patience_s: float) -> None:
    """By ``async for message in inbox``, acknowledging each by its own block."""
    if tally.received >= messages:
        return
    with trio.move_on_after(patience_s) as patience:
        async for message in inbox:
            async with message:
                tally.add_one(message.offset, message.due_ms, message.payload)
            if tally.received % _STEP == 0:
                patience.deadline = trio.current_time() + patience_s
            if tally.received >= messages:
                return


async def take_all(
    take: Take, inbox: Inbox, tally: Tally, messages: int, window_ms: int = 0
) -> int:
    """Take until each message sent is there and all acknowledgements are durable.

    What comes twice does not count in the place of what is missing. ``window_ms`` is how
    long no message may be due.

    Returns:
      When that was, in milliseconds of the wall clock.
    """
    patience_s = PATIENCE_S + window_ms / 1000
    while True:
        await take(inbox, tally, messages, patience_s)
        await inbox.flush_acks()
        done_ms = now_ms()
        missing = tally.lost()
        if not missing or tally.received < messages:
            return done_ms
        messages = tally.received + missing
