"""A client that cancels, reschedules and runs messages early."""

from __future__ import annotations

from functools import partial

import trio

import escapement
from escapement.errors import EscapementError
from histories.history import Message
from histories.recording import amend
from stress.world import World, passes
from support.processes.broker import PATIENT


async def amend_some(world: World) -> None:
    """Amend some of the latest messages again and again, also those just delivered."""
    async with escapement.connect(world.url, settings=PATIENT) as client:
        while not world.over:
            await trio.sleep(world.chance.uniform(0, world.amend_pause_s))
            latest = world.history.messages[-500:]
            for message in world.chance.sample(latest, min(len(latest), 5)):
                if message.offset >= 0:
                    await _amend_one(world, client, message)


async def _amend_one(world: World, client: escapement.Broker, message: Message) -> None:
    history = world.history
    now_ms, delay_ms = history.now_ms(), world.chance.randint(500, min(20_000, world.longest_ms))
    what = world.chance.choice(["cancel", "reschedule", "run now"])
    try:
        if what == "cancel":
            await amend(history, client, message, None, client.cancel, "cancelled")
        elif what == "reschedule":
            call = partial(client.reschedule, delay=(delay_ms, "ms"))
            await amend(history, client, message, now_ms + delay_ms, call, "rescheduled")
        else:
            await amend(history, client, message, now_ms, client.run_now, "run now")
    except EscapementError as error:
        if not passes(error):
            raise
        history.counts["amendments without an answer"] += 1
