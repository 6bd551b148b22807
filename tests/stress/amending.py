"""A client that cancels, reschedules and runs messages early."""

from __future__ import annotations

import trio

import escapement
from escapement import AmendStatus, MessageId
from escapement.errors import EscapementError
from stress.history import NEVER_MS, now_ms
from stress.world import World, passes
from support.processes.broker import PATIENT


async def amend(world: World) -> None:
    """Amend some of the latest messages again and again, also those just delivered."""
    async with escapement.connect(world.url, settings=PATIENT) as client:
        while not world.over:
            await trio.sleep(world.chance.uniform(0, world.amend_pause_s))
            newest = len(world.history.messages)
            picked = world.chance.sample(range(max(0, newest - 500), newest), min(newest, 5))
            for number in picked:
                if world.history.messages[number].offset >= 0:
                    await _amend_one(world, client, number)


async def _amend_one(world: World, client: escapement.Broker, number: int) -> None:
    message, counts = world.history.messages[number], world.history.counts
    if message.moved is not None or message.cancelled_but_for is not None:
        return
    ids = [MessageId(f"public/default/{message.topic}", message.offset)]
    what = world.chance.choice(["cancel", "reschedule", "run now"])
    began_ms, delay_ms = now_ms(), world.chance.randint(500, min(20_000, world.longest_ms))
    try:
        if what == "cancel":
            message.maybe_cancelled = True
            (outcome,) = await client.cancel(ids)
            message.maybe_cancelled = False
            if outcome.status in (AmendStatus.DONE, AmendStatus.CANCELLED):
                message.cancelled_but_for = frozenset(outcome.handed)
                counts["cancelled"] += 1
        elif what == "reschedule":
            message.settled_ms = NEVER_MS
            message.earliest_ms = min(message.earliest_ms, began_ms + delay_ms)
            (outcome,) = await client.reschedule(ids, delay=(delay_ms, "ms"))
            if outcome.status is AmendStatus.DONE:
                message.moved = (began_ms + delay_ms, frozenset(outcome.handed))
                counts["rescheduled"] += 1
        else:
            message.settled_ms = NEVER_MS
            message.earliest_ms = min(message.earliest_ms, began_ms)
            (outcome,) = await client.run_now(ids)
            counts["run now"] += outcome.status is AmendStatus.DONE
            if outcome.status is AmendStatus.DONE:
                message.moved = (began_ms, frozenset(outcome.handed))
        message.settled_ms = now_ms()
    except EscapementError as error:
        if not passes(error):
            raise
        counts["amendments without an answer"] += 1
