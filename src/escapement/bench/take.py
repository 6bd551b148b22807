"""The measured consumer: several ways to receive messages and acknowledge them.

A consumer records each message that it receives in a tally. It stops when it has all messages, or
when no message has arrived for some seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from escapement.bench.stage import now_ms
from escapement.bench.tally import Tally
from escapement.client.consuming.inbox import Inbox

# If no message arrives for this long after it should, the missing messages count as lost.
TIMEOUT_S: Final = 20.0

# A way to receive: until the tally has the given number of messages, or until none has arrived for
# the given number of seconds.
Take = Callable[[Inbox, Tally, int, float], Awaitable[None]]


async def take_batches(inbox: Inbox, tally: Tally, messages: int, timeout_s: float) -> None:
    """Receive batches, and acknowledge each as a whole."""
    while tally.received_count < messages:
        batch = await inbox.next_batch(timeout_s)
        if batch is None:
            return
        tally.add(batch.offsets, batch.due_ms)
        await batch.ack()


def take_batches_failing(percent: int, back_off_ms: int) -> Take:
    """Return a variant of ``take_batches`` that fails the first attempt of some messages.

    It nacks ``percent`` % of the messages on their first attempt, with a back-off of
    ``back_off_ms``.
    """

    async def take(inbox: Inbox, tally: Tally, messages: int, timeout_s: float) -> None:
        while tally.received_count < messages:
            batch = await inbox.next_batch(timeout_s)
            if batch is None:
                return
            failed = (batch.attempts == 1) & (batch.offsets % 100 < percent)
            if failed.any():
                await inbox.nack(batch.offsets[failed], (back_off_ms, "ms"))
                tally.failed_count += int(failed.sum())
            if not failed.all():
                tally.add(batch.offsets[~failed], batch.due_ms[~failed])
                await inbox.ack(batch.offsets[~failed])

    return take


async def take_one_by_one(inbox: Inbox, tally: Tally, messages: int, timeout_s: float) -> None:
    """Receive single messages, and acknowledge each with ``async with``.

    ``async for message in inbox`` calls ``receive`` too, without a timeout.
    """
    while tally.received_count < messages:
        message = await inbox.receive(timeout_s)
        if message is None:
            return
        async with message:
            tally.add_one(message.offset, message.due_ms, message.payload)


async def take_all(
    take: Take, inbox: Inbox, tally: Tally, messages: int, window_ms: int = 0
) -> int:
    """Receive until every message sent has arrived and all acknowledgements are durable.

    Give up if no message arrives for ``TIMEOUT_S`` plus ``window_ms``.

    Args:
      take: the way to receive.
      messages: the number of messages to receive. Duplicates are received in addition.
      window_ms: the longest time in which no message is due.

    Returns:
      The wall-clock time of the end, in milliseconds.
    """
    timeout_s = TIMEOUT_S + window_ms / 1000
    while True:
        await take(inbox, tally, messages, timeout_s)
        await inbox.flush_acks()
        done_ms = now_ms()
        missing = tally.lost()
        if not missing or tally.received_count < messages:
            return done_ms
        messages = tally.received_count + missing
