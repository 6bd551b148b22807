"""The measured consumer: takes and acknowledges until all is there, or nothing comes any more."""

from __future__ import annotations

from typing import Final

import trio

from escapement.bench.tally import Tally
from escapement.client.inbox import Inbox

# Without a message for so long, what is missing is taken for lost.
_PATIENCE_S: Final = 20.0
# Asking for the time for each message would be measured with it.
_STEP: Final = 1024


async def take_batches(inbox: Inbox, tally: Tally, messages: int) -> None:
    """By ``inbox.batches()``, acknowledging each batch as a whole."""
    with trio.move_on_after(_PATIENCE_S) as patience:
        async for batch in inbox.batches():
            tally.add(batch.offsets, batch.due_ms)
            await batch.ack()
            patience.deadline = trio.current_time() + _PATIENCE_S
            if tally.received >= messages:
                return


async def take_one_by_one(inbox: Inbox, tally: Tally, messages: int) -> None:
    """By ``async for message in inbox``, acknowledging each by its own block."""
    with trio.move_on_after(_PATIENCE_S) as patience:
        async for message in inbox:
            async with message:
                tally.add_one(message.offset, message.due_ms, message.payload)
            if tally.received % _STEP == 0:
                patience.deadline = trio.current_time() + _PATIENCE_S
            if tally.received >= messages:
                return
